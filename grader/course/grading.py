"""Grades one submission with the normal command, in a process of its own. Runs in a worker."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from grader.course.parcel import Parcel
from grader.course_file import FILE, Course, course, packed
from grader.version import VERSION, commit

ROOT = Path(__file__).resolve().parents[2]
REFUSAL = 2  # the grader's exit code if it cannot grade and says why
MAX_SAID = 2000  # characters of the grader's own words that are kept

RULES = ("course", "points", "extra_credit")  # sections that change what a check is worth


class GraderEnded(RuntimeError):
    """Raised if the process that grades was ended, for example because memory ran out.

    The engine then tries the submission once more, on another worker if there is one.
    """


@dataclass(frozen=True)
class Order:
    """What a worker needs to grade one submission. Equal orders give equal scores, anywhere."""

    parcel: Parcel
    seed: int
    version: str  # of the grader that gives the order: "1.0.0 commit"
    seconds: float  # for all checks together
    judges: int  # checks at a time
    official: bool  # refuse to grade where student code cannot be confined


@dataclass(frozen=True)
class Graded:
    """What a worker sends back."""

    exit_code: int | None  # of the grader; None if it took too long
    said: str  # the end of what the grader printed as an error
    results: bytes  # results.json, b"" if there is none
    report: bytes  # the page, b"" if there is none
    seconds: float
    peak_bytes: int


class OtherVersion(RuntimeError):
    """Raised by a worker whose grader is not the one that gives the order."""


def version() -> str:
    """Return which grader this is, with what the course has changed in it."""
    changed = packed(course(), RULES)
    if changed == packed(Course(), RULES):
        return f"{VERSION} {commit()}"
    return f"{VERSION} {commit()}, course {hashlib.sha256(changed.encode()).hexdigest()[:8]}"


def grade(order: Order) -> Graded:
    """Grade a submission.

    Raise GraderEnded if a signal ended the grader, and OtherVersion if this worker has other code.
    """
    if order.version != version():
        raise OtherVersion(f"a worker has Lockstep {version()}, not {order.version}")
    with tempfile.TemporaryDirectory(prefix="lockstep-course-") as name:
        folder = Path(name)
        results, report = folder / "results.json", folder / "report.html"
        command = [
            *(sys.executable, "-m", "grader.course.watched", str(order.seconds)),
            *("--results", results, "--report", report, "--seed", str(order.seed)),
            *("--seconds", str(order.seconds), "--workers", str(order.judges)),
            *(["--official"] if order.official else []),
            *("--", order.parcel.unpack(folder)),
        ]
        facts = _run([str(word) for word in command])
        return Graded(
            facts["exit_code"],
            facts["said"][-MAX_SAID:],
            results.read_bytes() if results.exists() else b"",
            report.read_bytes() if report.exists() else b"",
            facts["seconds"],
            facts["peak_bytes"],
        )


def _run(command: list[str]) -> dict:
    """Run the command, which prints one line of JSON, and return what it says.

    The command's standard input is a pipe that closes when this process ends, however it ends.
    """
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={k: v for k, v in os.environ.items() if k == FILE or not k.startswith("LOCKSTEP_")},
    )
    assert process.stdin and process.stdout
    try:
        said = process.stdout.read()
        code = process.wait()
    except BaseException:
        process.stdin.close()
        process.wait()
        raise
    process.stdin.close()
    process.stdout.close()
    if code or not said:
        raise GraderEnded(_ended(code))
    facts = json.loads(said)
    if facts["exit_code"] is not None and facts["exit_code"] < 0:
        raise GraderEnded(_ended(facts["exit_code"]))
    return facts


def _ended(code: int) -> str:
    if code >= 0:
        return f"the grader's process ended with exit code {code}"
    return f"the grader was ended by {signal.Signals(-code).name}"
