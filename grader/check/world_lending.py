"""Starts the ranks of checks, and lends those of one check to the next of its problem, as long as
nothing is left behind in them.

To start ranks takes much of the time of a grade. What fails on ranks that were used before is tried
again on fresh ones, so that no check fails because of another one. What passes there has passed.
After a check that has failed, the others of its problem have fresh ranks. Public checks and hidden
ones never share ranks: a message must not tell of both. Only the hub can tell whether ranks are at
rest: where gloo or nccl connects them, all ranks are fresh.
"""

import copy
import signal
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any

from grader.check.failures import CheckFailed, NeedsGpus
from grader.check.fault import judge
from grader.session import Session
from grader.wire.frames import GLOO
from grader.wire.os_support import LINUX
from grader.world import world as worlds
from grader.world.fork_server_client import WorldsUnavailable
from grader.world.limits import Limits
from grader.world.processes import Processes
from grader.world.report import Call, WorldReport

ROOM = 4  # ranks: few checks have more


@dataclass(frozen=True)
class Spent:
    """What one world of a check took."""

    size: int
    seconds: float
    is_fresh: bool  # its ranks were started for it


@dataclass
class KeptProcesses:
    """The processes that the next check of this key may use."""

    key: Hashable = None
    processes: Processes | None = None
    # keys of checks that have failed: their ranks are not lent
    failed: set[Hashable] = field(default_factory=set)

    def take(self, key: Hashable) -> Processes | None:
        """Hand over what was kept for this key, and close what was kept for another one."""
        found, self.processes = self.processes, None
        if found and self.key != key:
            found.close()
            found = None
        return found

    def give(self, key: Hashable, processes: Processes) -> None:
        self.key, self.processes = key, processes


KEPT = KeptProcesses()  # of this process, which makes one check after the other


class NotRun(CheckFailed):
    """No time was left to start ranks."""


class RankStarter:
    """What a check's ``world`` starts ranks with."""

    def __init__(
        self,
        session: Session,
        spent: list[Spent],
        limits: Limits = Limits(),
        network: str | None = None,
        key: Hashable = None,
    ) -> None:
        """Each world is noted in ``spent``.

        Ranks are shared with checks of the same ``key``; with none, they are fresh ones.
        """
        self.session, self.spent, self.limits, self.network = session, spent, limits, network
        # Whoever fails in one check may be right in the next one because of it. And elsewhere
        # nobody can tell what is left.
        self.key = None if key is None or not LINUX else (session.submission_dir, key)
        if self.key in KEPT.failed:
            self.key = None
        self.on_report: Callable[[WorldReport], None] = lambda report: None
        self.is_doubtful = False  # whether what failed may have failed because of an earlier check

    def __call__(self, size: int, calls: list[Call]) -> WorldReport:
        try:
            report = self._start(size, calls)
            # Whose fault this was shows when it happens again.
            return (
                self._start(size, calls)
                if report.ending == "lost" or self._has_crashed_on_gloo(report)
                else report
            )
        # killed, perhaps for want of memory: one more, which ends with this process
        except WorldsUnavailable:
            self.session.replace_server()
            return self._start(size, calls)

    def _has_crashed_on_gloo(self, report: WorldReport) -> bool:
        """Return whether a rank has had a segmentation fault on a real network.

        Right programs have had one there, once in a thousand gradings on a busy machine, when they
        gave up a process group.
        """
        return self.network == GLOO and any(rank.exit == -signal.SIGSEGV for rank in report.ranks)

    def _start(self, size: int, calls: list[Call]) -> WorldReport:
        began = time.monotonic()
        if began > self.session.ends_at:
            raise NotRun(
                f"Not run: the {self.session.seconds:g} seconds that one submission may take were"
                " over."
            )
        left = max(1.0, self.session.ends_at - began)
        bounds = replace(self.limits, world_seconds=min(self.limits.world_seconds, left))
        world = worlds.World(
            self.session.server,
            size,
            calls,
            self.session.submission_dir,
            self.session.device,
            bounds,
            network=self.network,
            room=ROOM if self.key is not None and size <= ROOM else 0,
            processes=KEPT.take(self.key),
        )
        try:
            report = world.run()
        finally:
            self.is_doubtful = self.is_doubtful or world.is_reused
            self.spent.append(Spent(size, time.monotonic() - began, not world.is_reused))
        if world.kept and world.processes:
            KEPT.give(self.key, world.processes)
        self.on_report(report)
        return report

    def begin_afresh(self) -> None:
        """From now on, start fresh ranks for each world of this check."""
        self.key, self.is_doubtful = None, False


def judge_fairly(check: Callable[..., None], arguments: dict[str, Any]) -> None:
    """Run a check, with what pytest gives it. Raises what it raises on ranks that no other check
    has used.

    Where no time is left for these, it raises what it raised first.
    """
    ranks = arguments["world"].runner if "world" in arguments else None
    again = (
        arguments | {"rng": copy.deepcopy(arguments["rng"])}
        if "rng" in arguments
        else dict(arguments)
    )
    try:
        judge(check, arguments)
    except Exception as first:
        if isinstance(first, NeedsGpus) or not isinstance(ranks, RankStarter):
            raise
        if not ranks.is_doubtful:
            KEPT.failed.add(ranks.key)
            raise
        key = ranks.key
        ranks.begin_afresh()
        try:
            judge(check, again)
        except NotRun:
            raise first from None
        finally:
            # Even if this passes, the problem's other checks get fresh ranks: else each of them
            # could be tried twice.
            KEPT.failed.add(key)
