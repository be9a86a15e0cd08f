"""Holds back the ranks that have to be late in a check.

This module knows which ranks are held, at which mark, and what releases them.
"""

import time
from collections.abc import Callable, Mapping

from grader.wire import frames, thread_activity
from grader.wire.events import Mark
from grader.world.report import STANDSTILL, Call, Delay, RankReport, WorldReport


class HeldRanks:
    """Holds ranks of a world, and releases them, as the delays of the world's calls say.

    ``send_go`` sends a held rank the frame that lets it go on. ``pids`` is the world's own
    table rank → pid, not a copy.
    """

    def __init__(
        self,
        calls: list[Call],
        report: WorldReport,
        pids: Mapping[int, int],
        send_go: Callable[[int], None],
    ) -> None:
        self.calls, self.report, self.pids, self.send_go = calls, report, pids, send_go
        # ``awaited``: the marks that decide when held ranks go on, as (rank, call, name).
        # ``passed``: the marks of ``awaited`` that ranks have passed.
        delays = [(i, delay) for i, call in enumerate(calls) for delay in call.delays.values()]
        self.awaited = {
            (delay.on, i, name) for i, delay in delays for name in (delay.until, delay.at)
        }
        self.passed: set[tuple[int, int, str]] = set()
        self.released: set[tuple[int, int]] = set()  # (rank, call)
        self.since: dict[int, float] = {}  # rank → the time since which it is held
        self.sleepers = thread_activity.Sleepers()

    def ranks(self) -> list[RankReport]:
        """Return the ranks that are held now."""
        return [rank for rank, _ in self._ranks_and_calls()]

    def _ranks_and_calls(self) -> list[tuple[RankReport, int]]:
        """Return the ranks that are held now, each with the call that it is held in."""
        return [(rank, rank.held) for rank in self.report.ranks if rank.held is not None]

    def hold(self, rank: RankReport, call: int) -> None:
        """Record that a rank is held in a call, then release the ranks that need not wait any more.

        Raises FrameError if this call has no delay for the rank, or if the rank has been released
        already.
        """
        if rank.rank not in self.calls[call].delays or (rank.rank, call) in self.released:
            raise frames.FrameError(
                "a report of being held, from a rank that has no delay or was released"
            )
        rank.held, self.since[rank.rank] = call, time.monotonic()
        self.release()

    def on_mark(self, mark: Mark) -> None:
        """Record that a rank has passed a mark, and release the ranks that wait for this mark.

        If no rank waits for the mark, do nothing.
        """
        passed = (mark.rank, mark.call, mark.name)
        if passed in self.awaited:
            self.passed.add(passed)
            self.release()

    def leaves_out_its_delay(self, rank: int, call: int, at: str = frames.CALL_BEGAN) -> bool:
        """Return whether a rank has skipped its delay at the mark ``at``.

        The caller knows that the rank has come to this mark, or past it. The rank has skipped its
        delay if the call has a delay for the rank at this mark, and the rank was not released.
        """
        delay = self.calls[call].delays.get(rank)
        return delay is not None and delay.at == at and (rank, call) not in self.released

    def release(self, everybody: bool = False) -> None:
        """Release the held ranks that may go on. If ``everybody`` is True, release all held ranks.

        The delay of a held rank names a mark ``until`` and a rank ``on``. The held rank may go on
        when rank ``on`` has passed this mark. It may also go on when the call has ended on rank
        ``on``, because rank ``on`` can then no longer pass the mark. If the delay has ``patience``,
        ``_has_had_patience`` gives two more reasons to go on.
        """
        for rank, call in self._ranks_and_calls():
            delay = self._delay(rank, call)
            if (rank.rank, call) in self.released:
                continue
            has_returned = call in self.report.ranks[delay.on].outcomes
            passed = everybody or has_returned or (delay.on, call, delay.until) in self.passed
            if passed or delay.patience and self._has_had_patience(rank, call, delay.patience):
                self.released.add((rank.rank, call))
                rank.held = None
                self.send_go(rank.rank)

    def wake(self) -> bool:
        """Release the ranks whose delay lasts until ``STANDSTILL``.

        Return whether there were such ranks.
        """
        held = [(call, self._delay(rank, call)) for rank, call in self._ranks_and_calls()]
        waking = {
            (delay.on, call, delay.until) for call, delay in held if delay.until == STANDSTILL
        }
        if waking:
            self.passed |= waking
            self.release()
        return bool(waking)

    def release_all(self) -> None:
        """Release all held ranks, and add their calls to ``released_early`` in the report.

        The caller has found that the other ranks wait for the held ranks, but not in an operation.
        For example, the other ranks may wait for a new group.
        """
        self.report.released_early |= {call for _, call in self._ranks_and_calls()}
        self.release(everybody=True)

    @property
    def any_is_patient(self) -> bool:
        """Return whether a rank is held by a delay with ``patience``, which ends by itself."""
        return any(self._delay(rank, call).patience for rank, call in self._ranks_and_calls())

    def _delay(self, rank: RankReport, call: int) -> Delay:
        return self.calls[call].delays[rank.rank]

    def _has_had_patience(self, rank: RankReport, call: int, patience: float) -> bool:
        """Return whether a held rank with patience may go on.

        It may go on if rank ``on`` has itself passed the mark ``at`` of the delay, and now waits.
        It may also go on if it has been held for more than ``patience`` seconds. A quarter of this
        time is enough if the system does not show whether rank ``on`` waits.
        """
        now, delay = time.monotonic(), self._delay(rank, call)
        sleeps = self.sleepers.sleeps(self.pids.get(delay.on, 0), now)
        if sleeps and (delay.on, call, delay.at) in self.passed:
            return True
        return now - self.since[rank.rank] > (patience / 4 if sleeps is None else patience)
