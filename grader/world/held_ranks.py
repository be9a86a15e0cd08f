"""Holds ranks that come late because a check asks for it.

It knows which ranks are held, at which mark, and what lets them go.
"""

import time
from collections.abc import Callable, Mapping

from grader.wire import frames
from grader.wire.events import Mark
from grader.world import watchdog
from grader.world.report import CALL_BEGAN, STANDSTILL, Call, Delay, RankReport, WorldReport


class HeldRanks:
    """Holds the ranks of a world as its calls' delays ask.

    ``let_on`` gives a rank the sign to go on. ``pids`` is the world's own table rank → pid.
    """

    def __init__(
        self,
        calls: list[Call],
        report: WorldReport,
        pids: Mapping[int, int],
        let_on: Callable[[int], None],
    ) -> None:
        self.calls, self.report, self.pids, self.let_on = calls, report, pids, let_on
        # the marks that decide when held ranks go on, as (rank, call, name), and those of them that
        # have been passed
        delays = [(i, delay) for i, call in enumerate(calls) for delay in call.delays.values()]
        self.awaited = {
            (delay.on, i, name) for i, delay in delays for name in (delay.until, delay.at)
        }
        self.passed: set[tuple[int, int, str]] = set()
        self.released: set[tuple[int, int]] = set()  # (rank, call)
        self.since: dict[int, float] = {}  # rank → when it was held
        self.sleepers = watchdog.Sleepers()

    def ranks(self) -> list[RankReport]:
        """Return the ranks that are held now."""
        return [rank for rank, _ in self._ranks_and_calls()]

    def _ranks_and_calls(self) -> list[tuple[RankReport, int]]:
        """Return the ranks that are held now, each with the call that it is held in."""
        return [(rank, rank.held) for rank in self.report.ranks if rank.held is not None]

    def hold(self, rank: RankReport, call: int) -> None:
        """Note that a rank waits at its mark. Raises FrameError if no delay asks it to."""
        if rank.rank not in self.calls[call].delays or (rank.rank, call) in self.released:
            raise frames.FrameError("a rank that says it is held, and is not")
        rank.held, self.since[rank.rank] = call, time.monotonic()
        self.release()

    def on_mark(self, mark: Mark) -> None:
        """Note a mark that a rank has passed, and release the ranks that wait for it."""
        passed = (mark.rank, mark.call, mark.name)
        if passed in self.awaited:
            self.passed.add(passed)
            self.release()

    def leaves_out_its_delay(self, rank: int, call: int, at: str = CALL_BEGAN) -> bool:
        """Return whether a rank has come to the mark ``at``, or past it, without its delay.

        The rank should have been held there, and was not.
        """
        delay = self.calls[call].delays.get(rank)
        return delay is not None and delay.at == at and (rank, call) not in self.released

    def release(self, everybody: bool = False) -> None:
        """Release the held ranks that need not wait any more; all of them if ``everybody``.

        A rank need not wait any more if the mark that it waits for has been passed, or never will
        be because the call has ended there. The same holds if its patience is over.
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
                self.let_on(rank.rank)

    def wake(self) -> bool:
        """Release the ranks that are held until the others stand still.

        Return whether there are any.
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
        """Release all held ranks, and note their calls in the report's ``let_go``.

        The others wait for them outside of operations, perhaps for a new group.
        """
        self.report.let_go |= {call for _, call in self._ranks_and_calls()}
        self.release(everybody=True)

    @property
    def are_patient(self) -> bool:
        """Return whether a held rank goes on by itself after a while."""
        return any(self._delay(rank, call).patience for rank, call in self._ranks_and_calls())

    def _delay(self, rank: RankReport, call: int) -> Delay:
        return self.calls[call].delays[rank.rank]

    def _has_had_patience(self, rank: RankReport, call: int, patience: float) -> bool:
        """Return whether a held rank with patience may go on.

        That is so if the rank ``on`` of its delay also waits, after its own mark, or has had enough
        time to come to that.
        """
        now, delay = time.monotonic(), self._delay(rank, call)
        sleeps = self.sleepers.sleeps(self.pids.get(delay.on, 0), now)
        if sleeps and (delay.on, call, delay.at) in self.passed:
            return True
        return now - self.since[rank.rank] > (patience / 4 if sleeps is None else patience)
