"""Runs the worlds of checks, and lends the ranks of a check to the next check of the same problem.

Lending saves time, because starting ranks takes a large part of a grading. Ranks are lent only if
the previous check has left nothing behind in them. Fresh ranks have made no calls yet. Used ranks
have made the calls of an earlier check. A check that fails on used ranks is tried again on fresh
ranks, so that no check fails because of another check. A check that passes on used ranks is not
tried again. After a check has failed, the other checks of its problem get fresh ranks.

A second try has other inputs. If it had the same inputs, a submission could cheat. In the first
try, the submission could compute the result in a forbidden way, save the result, and make the try
end without a verdict. In the second try, it could return the saved result.

Public and hidden checks never share ranks, because the message of a public check must not reveal
anything about a hidden check. If gloo or nccl connects the ranks, the ranks are always fresh. In
this case there is no hub. Only a hub knows whether used ranks have ended all their operations and
wait for new calls.
"""

import errno
import gc
import os
import signal
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any

from grader.check.check_exceptions import CheckFailed, Skipped
from grader.check.input_rng import make_rng
from grader.check.record import Answers
from grader.check.refusals import answers_in
from grader.check.run_check import judge
from grader.check.unfinished_imports import UnfinishedImports
from grader.session import Session
from grader.wire.frames import GLOO
from grader.wire.os_support import LINUX, give_back_freed_memory
from grader.world import world as worlds
from grader.world.fork_server_client import WorldsUnavailable, usual_network
from grader.world.limits import Limits
from grader.world.processes import Processes
from grader.world.report import IN_ALL_CALLS, Call, Ending, Raised, WorldReport

ROOM = 4  # the ranks of a larger world are never lent; few checks need a larger world
# If ranks cannot be started, or find a full disk, wait this many seconds, and try again.
PAUSE_SECONDS = 0.5
# A process that judges checks waits at most this many times. If the fault lasts longer, the process
# reports it.
MOST_PAUSES = 20
DISK_FULL = os.strerror(errno.ENOSPC)


@dataclass
class TimedWorld:
    """One world of a check: its size, the seconds that it took, and how functions answered."""

    size: int
    seconds: float
    is_fresh: bool  # whether new ranks were started for this world
    answers: dict[str, Answers] = field(default_factory=dict)


@dataclass
class KeptProcesses:
    """Keeps the processes of a world for the next check that has the same key."""

    key: Hashable = None
    processes: Processes | None = None
    # The keys of checks that have failed. Checks with such a key get fresh ranks.
    failed: set[Hashable] = field(default_factory=set)
    # The number of times that this process may still wait for free processes or disk space.
    pauses_left: int = MOST_PAUSES

    def take(self, key: Hashable) -> Processes | None:
        """Return the processes kept for this key, or None. Close processes kept for another key."""
        found, self.processes = self.processes, None
        if found and self.key != key:
            found.close()
            found = None
        return found

    def give(self, key: Hashable, processes: Processes) -> None:
        self.key, self.processes = key, processes


# One object is enough, because this process runs one check after the other.
KEPT = KeptProcesses()


class Disturbed(Exception):
    """Raised if something other than the submission may have ended a world."""


class NotRun(CheckFailed):
    """Raised if no time is left, or if the student's file has an endless import.

    The time may be over before ranks are started, or while they run.
    """


class WorldRunner:
    """Runs the worlds of one check. It is the ``runner`` of the check's ``CheckWorld``."""

    def __init__(
        self,
        session: Session,
        timed: list[TimedWorld],
        limits: Limits = Limits(),
        network: str | None = None,
        key: Hashable = None,
        visibility: str = "visible",
    ) -> None:
        """Prepare to run worlds. Each world that is run will be added to ``timed``.

        Ranks are shared with checks of the same ``key``. If ``key`` is None, all ranks are fresh.
        ``network`` is None for the usual network. ``visibility`` says when students see the check's
        result.
        """
        self.session, self.timed, self.limits, self.network = session, timed, limits, network
        # A submission that fails in one check may leave something behind in its ranks, so that it
        # passes the next check. So after a failure, ranks are fresh. If the system is not Linux,
        # ranks are always fresh, because the grader cannot see what is left behind.
        self.key = None if key is None or not LINUX else (session.submission_dir, key)
        if self.key in KEPT.failed:
            self.key = None
        self.unfinished = UnfinishedImports(session.submission_dir, visibility)
        self.on_report: Callable[[WorldReport], None] = lambda report: None
        self.is_doubtful = False  # whether an earlier check may be the reason for a failure
        self.is_second_try = False
        self.had_ranks = False  # whether all ranks of the last world were started

    def __call__(self, size: int, calls: list[Call]) -> WorldReport:
        report = self._run_on_some_server(size, calls)
        # Perhaps another world uses up the processes or the disk of this machine. That world will
        # be ended soon. If some ranks of this world were started, they have ended by now.
        while self._had_no_room(report) and KEPT.pauses_left:
            KEPT.pauses_left -= 1
            time.sleep(PAUSE_SECONDS)
            report = self._run_on_some_server(size, calls)
        # Perhaps the submission did not cause this ending. If the second try of the check also ends
        # like this, the ending counts as the submission's fault.
        if self._may_be_nobodys_fault(report) and not self.is_second_try:
            raise Disturbed
        return report

    def _run_on_some_server(self, size: int, calls: list[Call]) -> WorldReport:
        """Run a world. If the fork server does not answer, start another server, and run it there.

        Perhaps the server was killed, because memory ran out. The new server ends together with
        this process. No rank has seen the calls yet, so they can be made on the new server.
        """
        try:
            return self._run_world(size, calls)
        except WorldsUnavailable:
            self.session.replace_server()
            return self._run_world(size, calls)

    def _had_no_room(self, report: WorldReport) -> bool:
        """Return whether ranks could not be started, or failed outside student code on a full disk.

        For example, the ranks need space on the disk when they make their process group.
        """
        met_full_disk = (
            isinstance(outcome, Raised) and outcome.around and DISK_FULL in outcome.text
            for rank in report.ranks
            for outcome in rank.outcomes.values()
        )
        return bool(report.grader_fault and not self.had_ranks) or any(met_full_disk)

    def _may_be_nobodys_fault(self, report: WorldReport) -> bool:
        """Return whether a world may have ended like this although the submission is right.

        There are three such endings:

        - The world's supervisor is gone.
        - The system has killed a rank. When the machine's memory runs out, the system kills ranks
          first, even if other programs use the memory. (A world that exceeds its own memory limit
          has another ending.)
        - A rank had a segmentation fault on gloo, or was aborted there. On a busy machine, even
          correct programs have had this fault when they destroyed a process group, once in a
          thousand gradings. gloo aborts if it cannot start a thread.
        """
        exits = {rank.exit for rank in report.ranks}
        is_killed = report.ending == Ending.FAILED and -signal.SIGKILL in exits
        crashes = {-signal.SIGSEGV, -signal.SIGABRT}
        has_crashed = (self.network or usual_network()) == GLOO and bool(crashes & exits)
        return report.ending == Ending.LOST or is_killed or has_crashed

    def _run_world(self, size: int, calls: list[Call]) -> WorldReport:
        began = time.monotonic()
        if began > self.session.ends_at:
            raise NotRun(f"Not run: {self._time_limit()} was already over.")
        if calls and (reason := self.unfinished.find(calls[0].function, size)):
            raise NotRun(reason)
        # The inputs and results of earlier worlds may take tens of megabytes. In a container with
        # 0.75 GiB, the ranks need this memory.
        gc.collect()
        give_back_freed_memory()
        left = max(1.0, self.session.ends_at - began)
        bounds = replace(self.limits, world_seconds=min(self.limits.world_seconds, left))
        world = worlds.World(
            self.session.server,
            size,
            calls,
            self.session.submission_dir,
            bounds,
            network=self.network,
            room=ROOM if self.key is not None and size <= ROOM else 0,
            processes=KEPT.take(self.key),
            gpus=self.session.gpus,
        )
        try:
            report = world.run()
        finally:
            self.is_doubtful = self.is_doubtful or world.is_reused
            timed = TimedWorld(size, time.monotonic() - began, not world.is_reused)
            self.timed.append(timed)
        self.had_ranks = bool(world.processes and world.processes.pids)
        timed.answers = answers_in(report)
        if world.is_reusable and world.processes:
            KEPT.give(self.key, world.processes)
        self.unfinished.note(report)
        self.on_report(report)
        # If the ranks had less time than a world usually has, the submission may be right although
        # they were late.
        is_late_in_all_calls = report.ending == Ending.LATE and report.limit.endswith(IN_ALL_CALLS)
        if is_late_in_all_calls and left < self.limits.world_seconds:
            raise NotRun(f"Stopped: {self._time_limit()} was over while this check ran.")
        return report

    def _time_limit(self) -> str:
        return f"the time limit for one submission, {self.session.seconds:g} seconds,"

    def begin_afresh(self) -> None:
        """Begin the second try of this check: from now on, start fresh ranks for each world."""
        self.key, self.is_doubtful, self.is_second_try = None, False, True
        for timed in self.timed:
            timed.answers = {}  # only the answers of one try count: see ``check.refusals``


def judge_fairly(check: Callable[..., None], arguments: dict[str, Any]) -> None:
    """Run a check. If something other than the submission may have made it fail, run it again.

    For example, an earlier check may have used the same ranks, or this machine may lack memory. The
    second run has fresh ranks and other inputs. ``arguments`` are the arguments that pytest has for
    the check. Raises the exception of the last run. But if the first run ended with a verdict, and
    the second run had no time left, raises the exception of the first run.
    """
    runner = arguments["world"].runner if "world" in arguments else None
    if not isinstance(runner, WorldRunner):
        return judge(check, arguments)
    again = dict(arguments)
    if "rng" in arguments:
        # The second run's inputs depend only on the session's seed and the first generator's state.
        state = repr(arguments["rng"].bit_generator.state)
        again["rng"] = make_rng(runner.session.seed, state)
    try:
        judge(check, arguments)
    except Skipped:
        raise
    except Exception as first:
        if not runner.is_doubtful and not isinstance(first, Disturbed):
            KEPT.failed.add(runner.key)
            raise
        key = runner.key
        runner.begin_afresh()
        try:
            judge(check, again)
        except NotRun as not_run:
            raise (not_run if isinstance(first, Disturbed) else first) from None
        finally:
            # Even if the second run passes, the problem's other checks get fresh ranks. Otherwise
            # the submission could get a second try in each of these checks.
            KEPT.failed.add(key)
