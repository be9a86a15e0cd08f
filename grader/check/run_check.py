"""Runs a check, and finds out whether a rank's value or the grader caused its exception.

Ranks may send anything. If a check raises an exception because of a rank's values, the submission
has failed the check. But the reason may also be a mistake in the grader. To find out, the check is
run again, with the expected values in place of the ranks' values. If the second run also raises an
exception, the mistake is in the grader. The second run ends as soon as the check itself reads a
rank's value. In this case the first exception counts as the submission's mistake.
"""

import copy
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from grader.check.api import CheckFailed, CheckWorld, GraderFault, Skipped
from grader.check.call_result import CallResult
from grader.check.check_exceptions import OUR_MISTAKES
from grader.diagnosis.comparison import describe, difference
from grader.diagnosis.finding import Finding, Line, printable
from grader.world.arrays import Unsendable
from grader.world.report import Ending, Raised, RankReport, Returned, Runner, WorldReport

# The limit of the judge's processor time for one check, in seconds. The judge needs hundredths of a
# second for the values of an honest submission.
JUDGING_SECONDS = 10.0
SLOW = (
    "Stopped: the ranks' results take more than {:g} seconds to judge. Did the ranks return far"
    " more than the docstring asks for?"
)
UNREADABLE = (
    "The ranks' results cannot be judged: they do not have the form that the docstring asks for."
)


def judge(
    check: Callable[..., None], arguments: dict[str, Any], seconds: float = JUDGING_SECONDS
) -> None:
    """Run a check with the arguments that pytest has for it.

    Raises the exception that the check raises. But if only a rank's values caused this exception,
    raises CheckFailed instead. ``seconds`` limits the processor time of the judging.
    """
    world = arguments.get("world")
    if world is None:
        return check(**arguments)
    again = (
        arguments | {"rng": copy.deepcopy(arguments["rng"])}
        if "rng" in arguments
        else dict(arguments)
    )
    runner = _TimedRunner(world.runner)
    world.runner = runner
    try:
        with _time_limit(runner, seconds):
            check(**arguments)
    except (CheckFailed, Skipped, GraderFault, *OUR_MISTAKES):
        raise
    except Exception as error:
        if runner.at_work or not runner.reports or _is_ours(check, again, world, seconds):
            raise
        raise CheckFailed(_finding(error, runner.reports[-1])) from error
    finally:
        world.runner = runner.run


class _TimedRunner:
    """Runs the worlds of a check, and keeps the reports on them.

    While the ranks run, the time limit of the judging is paused.
    """

    def __init__(self, run: Runner) -> None:
        self.run = run
        self.reports: list[WorldReport] = []
        self.at_work = False
        self.limited = False

    def __call__(self, size: int, calls: list) -> WorldReport:
        left, _ = signal.setitimer(signal.ITIMER_PROF, 0) if self.limited else (0.0, 0.0)
        self.at_work = True
        report = self.run(size, calls)
        self.at_work = False
        self.reports.append(report)
        if self.limited:
            signal.setitimer(signal.ITIMER_PROF, max(left, 0.001))  # 0 would mean no limit
        return report


@contextmanager
def _time_limit(runner: _TimedRunner, seconds: float) -> Iterator[None]:
    """Fail the check if its judging takes more than ``seconds`` of processor time.

    The limit works in the main thread, where judges run. In any other thread there is no limit,
    because Python handles signals only in the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: Any) -> NoReturn:
        raise CheckFailed(SLOW.format(seconds))

    before = signal.signal(signal.SIGPROF, stop)
    runner.limited = True
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _finding(error: Exception, report: WorldReport) -> Finding:
    """Return a finding that shows the student what the ranks returned.

    The finding tells the instructor, but not the student, where the judge failed.
    """
    came = []
    for rank in report.ranks:
        values = [
            outcome.value for outcome in rank.outcomes.values() if isinstance(outcome, Returned)
        ]
        came += [Line(f"    rank {rank.rank} returned {describe(values[-1])}")] if values else []
    place = traceback.extract_tb(error.__traceback__)[-1]
    cause = printable(f"{type(error).__name__}: {error}"[:200])
    where = f"{Path(place.filename).name}:{place.lineno}"
    return Finding(UNREADABLE, tuple(came), for_instructor=f"{cause}, in {where}.")


# ——— the second run, with expected values


class UsesRankValue(Exception):
    """Raised when a check begins to depend on a value that a rank sent."""


class _Unknown:
    """Stands for the value of a rank. Reading the value's contents raises ``UsesRankValue``."""

    def _reached(self, *_: Any) -> NoReturn:
        raise UsesRankValue

    __getattr__ = __getitem__ = __contains__ = __iter__ = __len__ = _reached
    __bool__ = __eq__ = __float__ = __index__ = _reached
    __hash__ = None  # type: ignore[assignment]  # Python's way to say that an object has no hash


class ControlResult(CallResult):
    """Replaces ``CallResult`` in the second run, in which every value is treated as expected."""

    def values(self) -> list:
        return [_Unknown()] * self.report.size

    def read(self, reader, label) -> NoReturn:
        raise UsesRankValue

    def operations(self, rank: int) -> NoReturn:
        raise UsesRankValue

    def marks(self, rank: int, name: str) -> NoReturn:
        raise UsesRankValue

    def keeps_inputs(self, in_place: bool = False) -> None: ...

    def raises_value_error(
        self, *mentioning: str, given: str = "", because: str = "", since: str = ""
    ) -> None: ...

    def uses_only(self, *kinds: str, because: str, since: str = "") -> None: ...

    def require(self, condition: bool, sentence: str) -> None:
        # A false condition ends the check. So later lines of the check may rely on the condition.
        if not condition:
            raise UsesRankValue

    def _require_agreement(self) -> None: ...

    def _require_communication(self) -> None: ...

    def _require_close(self, values: list, expected: list, tolerance, *_: Any) -> None:
        for value in expected:
            if difference(value, value, tolerance):
                raise GraderFault("an expected value is not equal to itself")


def _is_ours(
    check: Callable[..., None], arguments: dict[str, Any], world: CheckWorld, seconds: float
) -> bool:
    """Return whether the check raises an exception even if every rank sends the expected values."""

    # Starts no ranks, and returns a report in which each call has returned a value.
    # ``ControlResult`` never reads this value.
    def no_ranks(size: int, calls: list) -> WorldReport:
        def outcomes() -> dict[int, Returned | Raised]:
            return {i: Returned(Unsendable("nothing"), [], {}) for i in range(len(calls))}

        ranks = [RankReport(rank, outcomes=outcomes(), done=True) for rank in range(size)]
        return WorldReport(size, calls, Path(), ranks, ending=Ending.FINISHED)

    control = CheckWorld(no_ranks, world.gpus, world.absent, world.facts)
    control.run_class = ControlResult
    try:
        with _time_limit(_TimedRunner(no_ranks), seconds):
            check(**arguments | {"world": control})
    except (UsesRankValue, CheckFailed, Skipped):
        return False
    except Exception:
        return True
    return False
