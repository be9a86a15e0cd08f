"""Reads the text of ranks' Python stacks, and finds out from the stacks what a rank does.

A stack is a list of ``StackFrame``, the innermost line first. It shows whether a thread waits in a
communication, and in which line of the student's code. ``stack_requests.py`` asks ranks for the
text of their stacks.
"""

import re
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from grader.assignment import GIVEN

# Python's files in which a thread waits for another thread of its process.
THREAD_FILES = {"threading.py", "queue.py"}


@dataclass(frozen=True)
class StackFrame:
    """A line of Python on a stack."""

    file: str
    line: int
    function: str


# A rank may write anything in place of its stacks. So every part of these patterns has a bound,
# which limits the length of a match and the time to find it.
THREAD = re.compile(
    r"^(?:Current thread|Thread) 0x[0-9a-f]{1,16}\b.{0,200}\(most recent call first\):$",
    re.MULTILINE,
)
FRAME = re.compile(
    r'^  File "(?P<file>.{1,4096})", line (?P<line>\d{1,9}) in (?P<function>.{1,500})$',
    re.MULTILINE,
)
MAX_THREADS = 64
MAX_FRAMES = 100  # of a thread: faulthandler shows no more


def parse_stacks(text: str) -> list[list[StackFrame]]:
    """Return the stacks of all Python threads in a report of faulthandler.

    The innermost line of each stack comes first.
    """
    stacks = []
    for block in THREAD.split(text, maxsplit=MAX_THREADS)[1:]:
        found = islice(FRAME.finditer(block), MAX_FRAMES)
        stacks.append([StackFrame(m["file"], int(m["line"]), m["function"]) for m in found])
    return [stack for stack in stacks if stack]


IMPORT_SYSTEM = "<frozen importlib"  # prefix of the file names of Python's import system


def is_importing(stack: list[StackFrame], submission_dir: Path) -> bool:
    """Return whether a thread is importing a module that is not the student's.

    torch imports such modules when one of its functions is used for the first time.
    """
    for place in stack:
        if _is_own(place, submission_dir):
            return False
        if place.file.startswith(IMPORT_SYSTEM):
            return True
    return False


# Functions of torch.distributed that return immediately. A rank in one of them does not wait.
QUESTIONS = {
    "get_rank",
    "get_world_size",
    "get_backend",
    "get_process_group_ranks",
    "get_global_rank",
    "get_group_rank",
}


def in_communication(
    stack: list[StackFrame], submission_dir: Path, has_open_operation: bool
) -> bool:
    """Return whether a thread that sleeps with this stack waits in a communication.

    ``has_open_operation`` says whether an operation of its rank still waits for other ranks.
    """
    innermost = stack[0].file
    if any(place.function in QUESTIONS and "/torch/distributed/" in place.file for place in stack):
        return False
    if "/torch/distributed/" in innermost:
        return True
    if "/torch/" in innermost:
        return any("/torch/distributed/" in place.file for place in stack) or has_open_operation
    # The student's own line calls a C++ function, such as Work.wait.
    if _is_own(stack[0], submission_dir):
        return has_open_operation and "sleep" not in source(stack[0])
    return False


def waits_for_nothing(stack: list[StackFrame], submission_dir: Path) -> bool:
    """Return whether the innermost line of a stack is the student's and calls ``.wait()``.

    A rank without an open operation may hang at such a line because it waits for the same operation
    a second time. For a send or receive of gloo, the first ``wait()`` returns, but a second one
    never does. One stack does not prove this, so the caller has to look at more than one stack. A
    line that contains “sleep” does not count.
    """
    line = source(stack[0]) if _is_own(stack[0], submission_dir) else ""
    return ".wait(" in line and "sleep" not in line


def may_wake(stack: list[StackFrame], submission_dir: Path) -> bool:
    """Return whether the student's innermost line seems to wait for a limited time.

    This is so if the line contains “sleep” or “timeout”.
    """
    line = next((source(place) for place in stack if _is_own(place, submission_dir)), "")
    return "sleep" in line or "timeout" in line


def own_frame(stacks: list[list[StackFrame]], submission_dir: Path) -> StackFrame | None:
    """Return the innermost line of the student's code; None if there is none.

    Each stack has the innermost line first. If several threads are in the student's code, return
    the line that is nearest to the innermost line of its stack. A thread that waits for another
    thread, as in ``queue.get``, counts only if there is no other thread. Files that the assignment
    gives, such as ``run.py``, are not the student's.
    """
    found = []
    for stack in stacks:
        for depth, place in enumerate(stack):
            if _is_own(place, submission_dir) and Path(place.file).name not in GIVEN:
                waits = any(Path(inner.file).name in THREAD_FILES for inner in stack[:depth])
                found.append((waits, depth, place))
                break
    return min(found, key=lambda entry: entry[:2])[2] if found else None


def line_in_import(stacks: list[list[StackFrame]], submission_dir: Path) -> StackFrame | None:
    """Return the student's innermost line if a rank is still importing the student's file.

    Return None if the rank is in a call of a student's function, because an import inside this
    function is a part of the call.
    """
    for stack in stacks:
        own = [place for place in stack if _is_own(place, submission_dir)]
        if own and own[-1].function == "<module>":
            return own[0]
    return None


def _is_own(place: StackFrame, submission_dir: Path) -> bool:
    """Return whether a line is in a file of the submission.

    A rank can report any path, but a message must never show a line of another file. So a path
    with ``..`` in it does not count.
    """
    return place.file.startswith(f"{submission_dir}/") and ".." not in Path(place.file).parts


def source(place: StackFrame) -> str:
    """Return the text of a line, at most 200 characters; empty if it cannot be read."""
    try:
        return (
            Path(place.file).read_text(errors="replace").splitlines()[place.line - 1].strip()[:200]
        )
    except (OSError, IndexError, ValueError):  # ValueError if the path has a null byte
        return ""
