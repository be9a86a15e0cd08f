"""Grades one submission in a worker: runs ``python -m grader`` as a separate process."""

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from distributed import get_worker

from grader.course.parcel import PackedSubmission
from grader.course_file import FILE, course, packed
from grader.packaging.visibility import NOT_FOR_GRADING, files
from grader.version import VERSION, commit
from grader.wire import machine_limits

ROOT = Path(__file__).resolve().parents[2]
MAX_STDERR_LETTERS = 6000  # characters of the grader's error output that are kept

RULES = ("course", "points", "extra_credit")  # sections of course.toml that change a check's points


class GraderEnded(RuntimeError):
    """Raised if the grading process ended without a result, for example for lack of memory.

    The engine then tries the submission once more, on another worker if there is one.
    """


class GradingProcesses:
    """Keeps a list of the child processes that grade, and can end all of them together."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running: set[subprocess.Popen] = set()
        self.are_ended = False

    def start(self, command: list[str]) -> subprocess.Popen:
        """Start a process that ends when its standard input, a pipe, is closed.

        The operating system also closes the pipe if the calling process ends, for any reason.
        """
        environment = {
            k: v for k, v in os.environ.items() if k == FILE or not k.startswith("LOCKSTEP_")
        }
        with self.lock:
            if self.are_ended:
                raise GraderEnded("the course was stopped")
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                # Ctrl-C then reaches only this process, which ends the child process.
                start_new_session=True,
            )
            self.running.add(process)
        return process

    def end(self, process: subprocess.Popen) -> None:
        with self.lock:
            self.running.discard(process)
            assert process.stdin
            process.stdin.close()

    @contextmanager
    def ended_together(self) -> Iterator[None]:
        """End all processes at the end of the ``with`` block.

        From then on, ``start`` raises GraderEnded until the next block begins.
        """
        self.are_ended = False
        try:
            yield
        finally:
            with self.lock:
                self.are_ended = True
            for process in list(self.running):
                self.end(process)


PROCESSES = GradingProcesses()


@dataclass(frozen=True)
class Order:
    """The data that a worker needs to grade one submission.

    Equal orders give equal scores on every machine.
    """

    parcel: PackedSubmission
    seed: str  # in decimal
    version: str  # of the grader that gives the order: "1.0.0 commit"
    seconds: float  # for all checks together
    official: bool  # refuse to grade if student code cannot be confined


@dataclass(frozen=True)
class Graded:
    """The result of a grading, which a worker sends back."""

    exit_code: int | None  # of the grader; None if it took too long
    said: str  # the end of the grader's standard error
    results: bytes  # results.json, b"" if there is none
    report: bytes  # the page, b"" if there is none
    seconds: float
    peak_bytes: int


class OtherVersion(RuntimeError):
    """Raised by a worker if the version of its grader differs from the version in the order."""


def version() -> str:
    """Return a text that identifies the grader. Graders with different checks have different texts.

    The text contains a digest of the course's rules and of all files that a grading uses. So even
    a change that is not committed changes the text.
    """
    digest = hashlib.sha256(packed(course(), RULES).encode())
    for name in files(NOT_FOR_GRADING):
        digest.update(f"\0{name}\0".encode())
        digest.update((ROOT / name).read_bytes())
    return f"{VERSION} {commit()[:12]} {digest.hexdigest()[:12]}"


def grade(order: Order) -> Graded:
    """Grade a submission.

    Raise GraderEnded if a signal ended the grader, if the process that watches the grader ended
    without a result, or if the course was stopped. Raise OtherVersion if the version of this
    worker's grader differs from the version in the order.
    """
    if order.version != version():
        raise OtherVersion(
            f"a worker has Lockstep {version()}, not {order.version}. Start all workers with"
            " the same files"
        )
    with tempfile.TemporaryDirectory(prefix="lockstep-course-") as name:
        folder = Path(name)
        results, report = folder / "results.json", folder / "report.html"
        command = [
            *(sys.executable, "-m", "grader.course.watched", str(order.seconds), folder),
            *("--results", results, "--report", report, "--seed", order.seed),
            *("--seconds", str(order.seconds), "--workers", str(checks_at_a_time())),
            *(["--official"] if order.official else []),
            *("--", order.parcel.unpack(folder)),
        ]
        facts = _run([str(word) for word in command])
        return Graded(
            facts["exit_code"],
            facts["said"][-MAX_STDERR_LETTERS:],
            results.read_bytes() if results.exists() else b"",
            report.read_bytes() if report.exists() else b"",
            facts["seconds"],
            facts["peak_bytes"],
        )


def checks_at_a_time() -> int:
    """Return how many checks each grading of this worker runs at a time.

    The worker uses all cores of its machine, and grades a submission on each of its threads.
    """
    return max(1, machine_limits.workers() // get_worker().state.nthreads)


def _run(command: list[str]) -> dict:
    """Run a command that prints one line of JSON, and return this line as a dict.

    Raise GraderEnded as ``grade`` does.
    """
    process = PROCESSES.start(command)
    assert process.stdout
    try:
        with process.stdout:
            said = process.stdout.read()
        code = process.wait()
    finally:
        PROCESSES.end(process)
    if code or not said:
        raise GraderEnded(_ended(code))
    facts = json.loads(said)
    if facts["exit_code"] is not None and facts["exit_code"] < 0:
        raise GraderEnded(_ended(facts["exit_code"]))
    return facts


def _ended(code: int) -> str:
    if code >= 0:
        return f"the grader's process ended with exit code {code}"
    memory = " (did the memory run out?)" * (code == -signal.SIGKILL)
    return f"the grader was ended by {signal.Signals(-code).name}{memory}"
