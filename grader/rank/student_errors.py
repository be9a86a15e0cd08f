"""This module finds the student's functions, and describes the exceptions that they raise.

This code runs beside student code.
"""

import os
import sys
import threading
import traceback
from pathlib import Path
from time import monotonic_ns  # bound early, because student code may change the module
from typing import Any

from grader.wire.exception_limits import MAX_LINES, MAX_NAME, MAX_SOURCE, MAX_TEXT


class Missing(Exception):
    """Raised if the student's file lacks the function or class that a check asks for."""


def find(name: str) -> Any:
    """Import a module of the submission, and return one of its functions or classes.

    ``name`` is ``module.function``. Raises Missing if the module has no function of this name.
    """
    module_name, function_name = name.split(".")
    module = __import__(f"handout.{module_name}", fromlist=[function_name])
    if not hasattr(module, function_name):
        raise Missing(f"{module_name}.py has no {function_name}")
    return getattr(module, function_name)


def describe(error: BaseException, submission_dir: Path) -> dict:
    """Return a dict that describes an exception: see ``report.Raised``.

    ``lines`` holds the innermost lines of the student's own files, at most ``MAX_LINES``. The last
    line is the innermost one.
    """
    steps = traceback.extract_tb(error.__traceback__)
    places = [s.filename.startswith(str(submission_dir)) for s in steps]
    below = steps[len(places) - places[::-1].index(True) :] if any(places) else []
    own = [
        {
            "file": Path(s.filename).name,
            "line": s.lineno or 0,
            "function": s.name[:MAX_NAME],
            "source": (s.line or "")[:MAX_SOURCE],
        }
        for s in steps
        if s.filename.startswith(str(submission_dir))
    ]
    if (
        isinstance(error, SyntaxError)
        and isinstance(error.filename, str)
        and error.filename.startswith(str(submission_dir))
    ):
        source = (error.text or "").strip()[:MAX_SOURCE]
        own.append(
            {
                "file": Path(error.filename).name,
                "line": error.lineno or 0,
                "function": "",
                "source": source,
            }
        )
    try:
        text = str(error.msg if isinstance(error, SyntaxError) else error)[:MAX_TEXT]
    except BaseException:
        text = "(its message cannot be shown)"
    return {
        "type": type(error).__name__[:MAX_NAME],
        "missing": isinstance(error, Missing),
        "is_value_error": isinstance(error, ValueError),
        "text": text,
        "lines": own[-MAX_LINES:],
        "inside": _inside(below)[:MAX_NAME],
        # A stub raises in the student's own file. torch also raises NotImplementedError, but in its
        # own files.
        "stub": (
            isinstance(error, NotImplementedError)
            and bool(steps)
            and steps[-1].filename.startswith(str(submission_dir))
        ),
        "at": monotonic_ns(),
    }


def _inside(below: list[traceback.FrameSummary]) -> str:
    """Return the name of the function that raised an exception; "" if the student's line did.

    ``below`` are the stack entries below the student's innermost line. If functions of
    torch.distributed are among them, return the innermost of these functions, because it may call
    the grader's code.
    """
    of_torch = [s.name for s in below if f"{os.sep}torch{os.sep}distributed{os.sep}" in s.filename]
    return [*(s.name for s in below), *of_torch][-1] if below else ""


def print_own_lines_of_threads(submission_dir: Path) -> None:
    """From now on, if a thread raises an exception, print only the student's lines of the stack."""

    def tell(raised: threading.ExceptHookArgs) -> None:
        if raised.exc_value is None or isinstance(raised.exc_value, SystemExit):
            return
        described = describe(raised.exc_value, submission_dir)
        name = raised.thread.name if raised.thread else "A thread"
        text = [f"{name} raised {described['type']}: {described['text']}"]
        for step in described["lines"]:
            where = f"{step['file']}:{step['line']}, in {step['function']}"
            text.append(f"  {where}:  {step['source']}")
        print("\n".join(text), file=sys.stderr)

    threading.excepthook = tell
