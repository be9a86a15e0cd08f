"""Runs the checks of one submission, and returns a record of each check.

This module writes no results and prints nothing.
"""

import contextlib
import io
import os
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

# One thread is enough for a judge, and a fork copies only one thread. Numpy reads the variable
# during its import.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest

from grader.check.check_metadata import record_of
from grader.check.plugin import about_hidden_checks
from grader.check.record import ERROR, NOT_RUN, PASSED, SKIPPED, Record
from grader.check.refusals import fail_where_right_calls_are_refused
from grader.check.workers import Workers
from grader.check.world_lending import ROOM
from grader.session import HIDDEN, ROOT, UNCONFINED, CannotGrade, SessionOwner, is_students_copy
from grader.version import untested_torch
from grader.wire import os_support
from grader.wire.tiers import TIERS
from grader.world.fork_server_client import WorldsUnavailable, way_to_start
from grader.world.gpus import Gpus


@dataclass(frozen=True)
class Options:
    """Options of a grading: which checks are run, and how many at a time.

    If ``official`` is True, the grade counts for the course, and the ranks must be confined.
    """

    part: str = ""
    problems: Sequence[str] = ()
    only: str = ""  # words of a check, a problem or a function
    workers: int = 1
    official: bool = False

    def as_arguments(self) -> list[str]:
        """Return the options as pytest's arguments: see ``check.plugin``."""
        part = ["--part", self.part] if self.part else []
        return [*part, *(f"--problem={number}" for number in self.problems), f"--only={self.only}"]


@dataclass
class Grade:
    """The result of grading a submission. While checks run, the result is incomplete."""

    records: list[Record]  # of all checks, also of those that have not been run yet
    warnings: list[str]  # of the intake
    seed: int
    gpus: Gpus | None  # the GPUs that the ranks ran on; None for CPUs
    began: float  # by time.monotonic
    workers: int = 0
    torch: str = ""
    confinement: dict = field(default_factory=dict)
    seconds_to_start: float = 0.0
    seconds: float = 0.0
    fault: str = ""  # a sentence about why the grade must not be trusted; "" if it can be trusted
    also: "Grade | None" = None  # the grade of the same submission on GPUs; it changes no points

    @property
    def device(self) -> str:
        return str(self.gpus) if self.gpus else "cpu"

    def facts(self) -> dict:
        """Return the facts about this grading for results.json, as plain JSON."""
        names = ("seed", "device", "workers", "torch", "confinement", "seconds_to_start")
        facts = {name: getattr(self, name) for name in names}
        facts["seed"] = str(self.seed)  # text, because many readers of JSON round large numbers
        if self.also:
            checks = {record.id: record.status for record in self.also.records}
            facts["also"] = {"device": self.also.device, "notes": self.also.gpu_notes()}
            facts["also"]["checks"] = checks
        return facts

    def gpu_notes(self) -> list[str]:
        """Return lines about the results of this grading on GPUs, for the instructor."""
        assert self.gpus
        counts = Counter(record.status for record in self.records)
        passed, most = counts.pop(PASSED, 0), max(max(r.worlds, default=0) for r in self.records)
        rest = "".join(f", {count} {status}" for status, count in counts.items())
        lines = [f"Also on {self.gpus}: {passed} of {len(self.records)} checks passed{rest}."]
        if self.gpus.are_shared_by(most):
            count = len(self.gpus.ids)
            lines.append(
                f"    Up to {most} ranks shared {count} GPU{'s' * (count > 1)}. If ranks share a"
                " GPU, the hub, and not nccl, carries their messages."
            )
        if self.gpus.nccl and len(self.gpus.ids) > 1:
            lines.append(
                f"    nccl {self.gpus.nccl} carried the messages in the checks that use gloo on"
                " a CPU, if each rank had a GPU of its own."
            )
        lines.append(
            "    Ranks on GPUs are confined less: student code can make any system call. It can"
            " also take all memory of a GPU, even if other ranks use this GPU, too."
        )
        if reasons := Counter(r.message for r in self.records if r.status == SKIPPED):
            lines += [f"    {count} × {reason}" for reason, count in reasons.items()]
        return lines

    def notes(self) -> list[str]:
        """Return the lines below the points, in the terminal and on the page."""
        # In a student's copy, the notes do not say how student code was confined: students run
        # their own code on their own machines.
        about = (
            [about_hidden_checks()] if is_students_copy() else confinement_notes(self.confinement)
        )
        return [
            *self.warnings,
            *filter(None, [untested_torch()]),
            *about,
            *(self.also.gpu_notes() if self.also else []),
            f"seed {self.seed}, torch {self.torch}, {self.device}, {self.seconds:.1f} s",
        ]


class Catalogue:
    """A pytest plugin that makes a record of every check, before the first check runs."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.records |= {record.id: record for item in session.items if (record := record_of(item))}


class Collector(Catalogue):
    """A pytest plugin that updates the records, in the process that controls the workers."""

    def __init__(self, on_begin: Callable[[], None], on_result: Callable[[], None]) -> None:
        super().__init__()
        self.on_begin, self.on_result = on_begin, on_result
        self.collected = self.begun = False
        self.failure: WorldsUnavailable | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Call ``on_begin``, unless collecting failed or pytest was asked only to collect.

        At this moment the workers have been started, and wait for the first check.
        """
        self.collected = bool(self.records) and not session.testsfailed
        if not self.collected or session.config.option.collectonly:
            return
        try:
            self.on_begin()
            self.begun = True
        except WorldsUnavailable as error:
            self.failure = error
            pytest.exit(str(error))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if found := getattr(report, "lockstep", None):
            self.records[found["id"]] = Record.read(found)
            self.on_result()


def grade(
    owner: SessionOwner,
    options: Options,
    began: float,
    watch: Callable[[Grade], None] = lambda _: None,
) -> Grade:
    """Run the checks on a session's submission, and return the grade.

    ``began`` is the value of time.monotonic() when the grading began. ``watch`` is called before
    the first check and after each check. It gets the grade with the results that exist at that
    time. Raise CannotGrade if no check could be run. Raise WorldsUnavailable if ranks cannot be
    started, or if the grade is official and ranks cannot be confined.
    """
    owner.share()
    session = owner.session
    found = Grade([], owner.warnings, session.seed, session.gpus, began)
    many = max(1, options.workers)
    if session.gpus:  # each world may need room for ``ROOM`` ranks
        many = max(1, min(many, session.gpus.ranks // ROOM))

    def update() -> None:
        found.records = list(collector.records.values())
        found.seconds = time.monotonic() - began
        watch(found)

    def on_begin() -> None:
        assert owner.server  # a session always has one
        facts = owner.server.facts()  # torch was imported while the checks were collected
        if options.official and facts["tier"] == "none":
            reasons = (
                "; ".join(f"{tier}: {reason}" for tier, reason in facts["failed"].items())
                or facts["kernel"]
            )
            raise WorldsUnavailable(f"{UNCONFINED}, so there is no official grade ({reasons})")
        found.torch = facts["torch"]
        found.confinement = {
            name: facts[name]
            for name in (
                "tier",
                "kernel",
                "failed",
                "gaps",
                "why_no_control_group",
                "seconds_between_looks",
            )
        }
        found.workers = min(many, len(collector.records))
        found.seconds_to_start = round(time.monotonic() - began, 3)
        update()

    collector = Collector(on_begin, update)
    code, printed = _run(options.as_arguments(), collector, many)
    if collector.failure:
        raise collector.failure
    if not collector.begun:
        raise CannotGrade(_why_not_begun(code, printed, collector))
    fail_where_right_calls_are_refused(collector.records.values())
    found.fault = _fault(code, printed, list(collector.records.values()))
    update()
    return found


def _run(arguments: list[str], collector: Collector, workers: int) -> tuple[int, str]:
    """Run the checks, ``workers`` at a time. Return pytest's exit code and its output.

    Several workers are forked processes. If a fork is not safe, they are fresh interpreters.
    """
    if workers == 1:
        return run_pytest(arguments, collector)
    if way_to_start() == "fork":
        return run_pytest(arguments, collector, Workers(workers))
    # Collect once without the workers, because xdist's workers do not report what they collect.
    code, printed = run_pytest(["--collect-only", *arguments], collector)
    return (
        (code, printed)
        if code
        else run_pytest(["-p", "xdist.plugin", "-n", str(workers), *arguments], collector)
    )


def run_pytest(arguments: list[str], *plugins: object) -> tuple[int, str]:
    """Run pytest in this process. Return its exit code and its output."""
    places = [str(place) for place in (ROOT / "tests", HIDDEN) if place.exists()]
    printed = io.StringIO()
    # Ignore pytest's plugins and options from the environment. Plugins take time to load, and none
    # of them may change the grading.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.environ.pop("PYTEST_ADDOPTS", None)
    os.environ.pop("PYTEST_PLUGINS", None)
    # Switch off what takes time and has no use here: rewritten asserts, tracebacks with source,
    # captured output, temporary folders.
    own = [
        "-c",
        str(ROOT / "setup.cfg"),
        "--rootdir",
        str(ROOT),
        "--assert=plain",
        "--tb=native",
        "--capture=no",
    ]
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = pytest.main([*own, "-p", "no:tmpdir", *arguments, *places], plugins)
    return int(code), printed.getvalue()


def _why_not_begun(code: int, printed: str, collector: Collector) -> str:
    if code == pytest.ExitCode.INTERRUPTED and (collector.collected or not collector.records):
        return "interrupted"
    if code == pytest.ExitCode.USAGE_ERROR:
        return printed.rpartition("ERROR: ")[2].strip()
    what = "run" if collector.collected else "collected"
    return f"the checks cannot be {what}:\n{printed.strip()[-3000:]}"


def _fault(code: int, printed: str, records: list[Record]) -> str:
    if code == pytest.ExitCode.INTERRUPTED:
        return "interrupted; checks that have not run get 0 points"
    if broken := [record for record in records if record.status in (ERROR, NOT_RUN)]:
        # The first line is the same for all submissions that fail in this way, so that
        # ``make course`` can count them.
        first = f"{broken[0].number} {broken[0].name}"
        return (
            f"the grader itself failed in some checks, first in {first}\n{printed.strip()[-3000:]}"
        )
    if all(record.status == SKIPPED for record in records):
        return f"every check was skipped: {records[0].message}"
    return ""


def confinement_notes(found: dict) -> list[str]:
    """Return lines about how student code was confined, and about gaps, for the instructor."""
    notes = [f"How ranks were confined: {TIERS[found['tier']].name} ({found['kernel']})."]
    if found["tier"] == "none":
        notes = [
            "Unofficial: ranks were not confined. Student code ran with your rights"
            f" ({found['kernel']})."
        ]
    notes += [f"    {tier} does not work: {reason}" for tier, reason in found["failed"].items()]
    if not os_support.LINUX:
        notes.append("    On this system, nothing limits the memory, processes and files of ranks.")
        return notes + [f"    Here student code can {gap}." for gap in found["gaps"]]
    milliseconds = found["seconds_between_looks"] * 1e3
    looks = f"checked from outside the ranks every {milliseconds:.0f} ms, less often for many ranks"
    held = "the kernel limits them for each world"
    if found["why_no_control_group"]:
        held = f"{looks}; the kernel does not limit them ({found['why_no_control_group']})"
    notes.append(f"    Memory and processes: {held}.")
    notes.append(f"    Processor time and files: {looks}; rlimits and seccomp limit each process.")
    return notes + [f"    Here student code can {gap}." for gap in found["gaps"]]
