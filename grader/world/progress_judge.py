"""Decides when a world has ended, and how: finished, failed, stuck, or late."""

import signal
import time
from collections.abc import Callable

from grader.world import stack_frames, thread_activity
from grader.world.held_ranks import HeldRanks
from grader.world.limits import Limits
from grader.world.processor_time import Spending
from grader.world.report import IN_ALL_CALLS, Call, Ending, Raised, RankReport, WorldReport
from grader.world.stack_requests import Stacks, is_communicating, seems_to_wait

# Seconds between two looks at what the ranks do: ``LOOK_SECONDS`` for each rank, because a look at
# more ranks takes longer, but at least ``MIN_LOOK_SECONDS``.
LOOK_SECONDS = 0.01
MIN_LOOK_SECONDS = 0.05
# On a busy machine, some time does not count against a limit of wall time: see ``Limits``. This
# excused time is at most ``MAX_STRETCH`` times the limit. The value 3 was too small: of 792
# gradings of right solutions, one exceeded the limit of a memory check (9.2, with 12 ranks). Ten
# gradings ran at a time on two cores.
MAX_STRETCH = 6
# All time limits are longer by these seconds while the ranks of a world start their GPUs, before
# their first call.
GPU_START_SECONDS = 60.0
# If every failed rank only reports that a peer has gone, ``grace_seconds`` is multiplied by this.
# So the rank at fault has time to fail, too.
VICTIMS_PATIENCE = 20
# When this part of a call's time limit has passed, ranks that are held until ``STANDSTILL`` are
# released. Ranks that have sent nothing for this part of the limit count as silent for long.
LONG_PART = 1 / 4
# Ranks may seem to wait, but nothing proves that they wait for ever. If they seem to wait this many
# times in a row, they are taken to be stuck.
DOUBTS = 3
# The judge makes a step at least every 0.2 seconds. If there was none for this many seconds, the
# judge was stopped, for instance by Ctrl-Z. This time counts against no limit.
PAUSE_SECONDS = 2.0


class ProgressJudge:
    """Decides when one world has ended, and sets ``report.ending``.

    It follows what ranks send, what their threads do, and what the hub says. A verdict of *stuck*
    needs evidence that every rank waits. Either the hub reports this, or the stacks show waits, and
    are the same in two readings in a row. The judge reads the stacks when the threads are idle, or
    when a limit is exceeded.

    Three words mean different things. A *standstill* is what the hub reports: every rank waits for
    an operation or for the judge, and no operation can be completed. A world is *stuck* when the
    judge has concluded that no rank will go on. If the ranks wait for each other, the message to
    the student calls this a *deadlock* (``diagnosis.root_cause``).
    """

    def __init__(
        self,
        calls: list[Call],
        report: WorldReport,
        limits: Limits,
        pids: dict[int, int],
        held: HeldRanks,
        ask_moves: Callable[[], None],
        ask_hub_for_results: Callable[[], None],
    ) -> None:
        self.calls = calls
        self.report = report
        self.limits = limits
        self.pids = pids
        self.held = held
        self.stacks = Stacks(report.size, pids, ask_moves)
        # what to conclude once the stacks have arrived: STUCK or LATE
        self.verdict_pending: Ending | None = None
        self.watch, self.spending = thread_activity.Watch(), Spending()
        self.began = self.call_began = self.heard = self.stepped = time.monotonic()
        self.cpu_before: dict[int, float] = {}  # pid → processor seconds used before this call
        self.cpu_allowed = limits.cpu_seconds
        # pid → its excused seconds when this call began: see ``Watch.excused``
        self.excused_before: dict[int, float] = {}
        self.excused_at_start: dict[int, float] = {}  # the same, when the world began
        self.starting: set[int] = set()  # ranks that still start their GPUs
        self.failed_at: float | None = None
        # The ranks that were held when the hub reported a standstill. None if the hub has reported
        # no standstill, or if the standstill is over.
        self.standstill: list[int] | None = None
        self.frames = self.frames_before_standstill = 0
        self.is_certain = False  # whether it is certain that no rank will ever go on
        self.doubts = 0  # how many times in a row the ranks only seemed to be stuck
        self.ask_hub_for_results = ask_hub_for_results
        # whether the hub may withhold results or messages that idle ranks wait for
        self.hub_may_withhold_results = any(call.slow_gathers or call.clocks for call in calls)
        # whether the judge asks the hub to give these results, before it asks idle ranks for stacks
        self.asks_hub_first = self.hub_may_withhold_results
        self.awaits_hub = False  # whether the hub's answer to this question is still missing

    # ——— events

    def on_started(self) -> None:
        """Begin all time limits now, because the ranks have just been started.

        Before, the fork server may have imported modules, or started other worlds.
        """
        self.began = self.call_began = self.heard = time.monotonic()

    def on_reused_ranks(self) -> None:
        """Forget the time that was excused in earlier checks of these ranks."""
        self.watch.look(self.pids.values(), time.monotonic())
        self.spending.look(list(self.pids.values()))
        self.watch.excuse(self.spending.supervisors)
        self.excused_before = self.excused_at_start = dict(self.watch.excused)

    def on_gpus(self) -> None:
        """Record that the ranks of this world start their GPUs before their first call."""
        self.starting = set(range(self.report.size))

    def on_call_began(self, rank: int) -> None:
        """Record that a rank has begun a call.

        If the rank had to start its GPU first, the time for this does not count: all time limits
        begin now. This happens at most once for each rank.
        """
        if rank in self.starting:
            self.starting.remove(rank)
            self.call_began = self.began = time.monotonic()
            self.cpu_before.pop(self.pids.get(rank, 0), None)
        self.report.ranks[rank].busy = False  # it has computed nothing in this call yet

    def on_frame(self) -> None:
        """Record that a rank has sent a frame.

        If the hub has reported a standstill, the frame ends the standstill, unless the hub passed
        the frame on before this report.
        """
        self.frames += 1
        if self.frames > self.frames_before_standstill:
            self.standstill = None
        self.watch.moved()
        self.doubts, self.heard, self.stacks.before = 0, time.monotonic(), None

    def on_standstill(self, held: list[int], frames: int) -> None:
        """Record that the hub says that every rank waits.

        ``held`` are the ranks that were held when the hub reported. ``frames`` is the number of
        frames that the hub had passed on by then. The hub's reports and the ranks' frames arrive on
        different sockets. If the judge has received more than ``frames`` frames, a rank has sent a
        frame since the report. Then the standstill is over, and is not recorded.
        """
        if self.frames <= frames:
            self.standstill, self.frames_before_standstill = held, frames

    def on_results(self, given: int) -> None:
        """Record how many results the hub has given to idle ranks: see ``_on_idle``."""
        self.awaits_hub = False
        if given:
            self.asks_hub_first = True
            self.watch.moved()

    def on_outcome(self) -> None:
        """Record that a call has ended on a rank. The time of the next call begins now."""
        self.call_began = time.monotonic()
        self.cpu_before = {}
        self.excused_before = dict(self.watch.excused)

    # ——— conclusions

    def step(self, now: float, silent: bool) -> None:
        """Set ``report.ending`` if the world has ended by now; otherwise look for evidence.

        ``now`` is the monotonic time in seconds. ``silent`` says whether nothing has arrived since
        the last step.
        """
        if (pause := now - self.stepped) > PAUSE_SECONDS:
            self.began += pause
            self.call_began += pause
            self.heard = now
            self.watch.moved()
        self.stepped = now
        self._forgive_crashes()
        if self.report.ending or self._end_if_settled(now, silent):
            return
        if self.stacks.are_awaited:
            self._read_stacks(now)
        elif self.standstill is not None and silent:
            self._on_standstill(self.standstill, now)
        elif (
            now - self.watch.looked >= max(MIN_LOOK_SECONDS, LOOK_SECONDS * self.report.size)
            and self.pids
        ):
            self._look(now, silent)

    def _forgive_crashes(self) -> None:
        """Keep the ending LATE if a rank crashes while it shows its stacks.

        Python itself can crash when it shows the stack of a thread that computes.
        """
        if self.stacks.are_awaited and self.verdict_pending == Ending.LATE:
            for rank in self.report.ranks:
                if rank.exit == -signal.SIGSEGV:
                    rank.exit, self.report.ending = None, Ending.LATE

    def _end_if_settled(self, now: float, silent: bool) -> bool:
        """Set the ending if the ranks finished or failed; return whether there is an ending.

        If one rank has failed, the other ranks get some time to fail by themselves, unless the hub
        says that every rank waits.
        """
        failed = [rank for rank in self.report.ranks if self._has_failed(rank)]
        if not self._unsettled():
            self.report.ending = Ending.FAILED if failed else Ending.FINISHED
        elif failed:
            self.failed_at = self.failed_at or now
            nobody_moves = self.standstill is not None and silent
            patience = VICTIMS_PATIENCE if all(map(self._is_victim, failed)) else 1
            if nobody_moves or now - self.failed_at > self.limits.grace_seconds * patience:
                self.report.ending = Ending.FAILED
        return bool(self.report.ending)

    def _unsettled(self) -> list[RankReport]:
        """Return the ranks that have neither finished nor failed."""
        return [rank for rank in self.report.ranks if not (rank.done or self._has_failed(rank))]

    def _has_failed(self, rank: RankReport) -> bool:
        raised = [
            o
            for c, o in rank.outcomes.items()
            if isinstance(o, Raised) and not self.calls[c].may_raise
        ]
        return bool(raised) or rank.exit is not None or rank.refused is not None

    def _is_victim(self, rank: RankReport) -> bool:
        """Return whether a rank failed only because another rank has ended."""
        raised = [outcome for outcome in rank.outcomes.values() if isinstance(outcome, Raised)]
        return (
            rank.exit is None
            and rank.refused is None
            and all(outcome.is_consequence for outcome in raised)
        )

    def _look(self, now: float, silent: bool) -> None:
        """Look at what the ranks' processes do. In two cases, ask for the ranks' call stacks.

        Ask for the call stacks if a limit is exceeded, or if all processes are idle. There are two
        reasons not to ask idle processes: a rank still starts its GPU, or a rank is held by a delay
        with ``patience``. Both end by themselves. When ``LONG_PART`` of the call's time limit has
        passed, first release the ranks held until ``STANDSTILL``.
        """
        used = self._used()
        watched = {self.pids[rank.rank] for rank in self._unsettled() if rank.rank in self.pids}
        idle = self.watch.look(
            watched.union(*(self.spending.started.get(pid, ()) for pid in watched)), now
        )
        self.watch.excuse(self.spending.supervisors)
        if not silent:
            self.watch.moved()
        more = GPU_START_SECONDS if self.starting else 0.0
        limits, in_call, in_all = self.limits, now - self.call_began, now - self.began
        in_call, in_all = in_call - more, in_all - more
        if max(used.values(), default=0.0) > self.cpu_allowed + more:
            self._on_too_much_computing(now, used)
        elif in_call > limits.wall_seconds * LONG_PART and self._wake():
            pass  # ranks may wait in a way that looks like computing, so held ranks were released
        elif self._is_over(in_call, limits.wall_seconds, self.excused_before):
            self._ask_stacks(now, Ending.LATE, f"{limits.wall_seconds:g} seconds")
        elif self._is_over(in_all, limits.world_seconds, self.excused_at_start):
            self._ask_stacks(now, Ending.LATE, f"{limits.world_seconds:g} seconds {IN_ALL_CALLS}")
        elif (
            idle >= thread_activity.IDLE_SECONDS
            and not self.held.any_is_patient
            and not self.starting
        ):
            self._on_idle(now)

    def _on_idle(self, now: float) -> None:
        """Ask for the stacks of idle ranks, but first ask the hub for results that it may withhold.

        The hub reports a standstill only if all threads of all ranks wait for the hub or the judge.
        A rank may have a thread that never does, while another thread waits for a withheld result:
        see ``hub.slow_gathers`` and ``hub.awaited_receives``.
        """
        if self.asks_hub_first:
            self.asks_hub_first, self.awaits_hub = False, True
            self.ask_hub_for_results()
        elif not self.awaits_hub:
            self.asks_hub_first = self.hub_may_withhold_results
            self._ask_stacks(now, Ending.STUCK)

    def _on_too_much_computing(self, now: float, used: dict[int, float]) -> None:
        for rank, pid in self.pids.items():
            self.report.ranks[rank].busy = used.get(pid, 0.0) > self.cpu_allowed / 2
        most = self.cpu_allowed + (GPU_START_SECONDS if self.starting else 0.0)
        limit = f"{most:g} seconds of processor time"
        if any(used[pid] > most > 2 * self.spending.own[pid] for pid in used):
            limit += " (most of it in processes that a rank started)"
        self._ask_stacks(now, Ending.LATE, limit)

    def _used(self) -> dict[int, float]:
        """Return the processor seconds of each rank's process since this call began, by pid.

        Processes that the rank has started count, too.
        """
        spent = self.spending.look(list(self.pids.values()))
        self.cpu_before = {pid: self.cpu_before.get(pid, seconds) for pid, seconds in spent.items()}
        return {pid: seconds - self.cpu_before[pid] for pid, seconds in spent.items()}

    def _is_over(self, seconds: float, limit: float, before: dict[int, float]) -> bool:
        """Return whether ``seconds`` minus the excused seconds of all processes exceed a limit.

        Excused seconds do not count against limits: see ``Watch.excused``. ``before`` maps each pid
        to its excused seconds at the time from which ``seconds`` are counted. At most
        ``MAX_STRETCH`` times the limit is excused.
        """
        excused = sum(now - before.get(pid, 0.0) for pid, now in self.watch.excused.items())
        return seconds - min(excused, MAX_STRETCH * limit) > limit

    # ——— ranks that wait

    def _on_standstill(self, told: list[int], now: float) -> None:
        """Release held ranks that can go on; if there are none, ask for stacks.

        The hub has reported that no rank will go on by itself. ``told`` are the ranks that were
        held at the time of the report. Do nothing if one of these ranks has been released since. Do
        not ask for stacks while a rank is held with ``patience``, because it will be released
        anyway.
        """
        held = {rank.rank for rank in self.held.ranks()}
        is_news = held.issuperset(told)  # False if one of these ranks has been released meanwhile
        self.standstill = None
        if not is_news or self._wake() or self.held.any_is_patient:
            return
        if held and not self.report.waiting():
            self.held.release_all()
        else:
            self.is_certain = True
            self._ask_stacks(now, Ending.STUCK)

    def _wake(self) -> bool:
        """Release the ranks that are held until all other ranks stand still.

        Return whether there were such ranks.
        """
        woke = self.held.wake()
        if woke:
            self.watch.moved()
        return woke

    def _ask_stacks(self, now: float, verdict: Ending, limit: str = "") -> None:
        self.verdict_pending, self.report.limit = verdict, limit
        self.stacks.ask(self._unsettled(), now)

    def _read_stacks(self, now: float) -> None:
        """Draw a conclusion from the stacks, when all have arrived or the time for them is over.

        Until then, do nothing.
        """
        asked = [rank for rank in self._unsettled() if rank.held is None]
        if not self.stacks.have_arrived(asked, now):
            return
        are_as_before = self.stacks.read(asked)
        # If no rank has sent anything for long, and the stacks show communications, the world is
        # stuck, even if the threads did not seem idle.
        silent_for_long = (
            not any(rank.busy for rank in asked)
            and now - self.heard > self.limits.wall_seconds * LONG_PART
        )
        if self.is_certain:
            self.report.ending = Ending.STUCK
        elif (self.verdict_pending == Ending.STUCK or silent_for_long) and self._examine_waits(
            asked, silent_for_long
        ):
            self._conclude_stuck(now, are_as_before)
        elif self.verdict_pending == Ending.LATE and self._may_import(asked):
            self.cpu_allowed += self.limits.cpu_seconds
            self.call_began = now
        elif self.verdict_pending == Ending.LATE:
            self.report.ending = Ending.LATE
        else:
            self.watch.moved()  # a rank sleeps, but not in a communication: it may wake up

    def _conclude_stuck(self, now: float, are_as_before: bool) -> None:
        """End a world in which all ranks wait.

        Do not end the world if the stacks have changed since the last reading. If held ranks can go
        on, release them instead of ending the world.
        """
        if not are_as_before:
            if self.verdict_pending == Ending.LATE:
                self._ask_stacks(now, Ending.LATE, self.report.limit)
        elif self._wake():
            pass
        elif self.held.ranks() and not self.report.waiting():
            self.held.release_all()
            self.watch.moved()
        else:
            self.report.ending = Ending.STUCK

    def _may_import(self, asked: list[RankReport]) -> bool:
        """Return whether a rank may have more time to import a module that is not the student's.

        torch imports some modules on first use. ``Limits.import_seconds`` bounds the additional
        time.
        """
        most = self.limits.cpu_seconds + self.limits.import_seconds
        submission_dir = self.report.submission_dir
        importing = any(
            stack_frames.is_importing(stack, submission_dir)
            for rank in asked
            for stack in rank.stacks
        )
        return importing and self.cpu_allowed < most

    def _examine_waits(self, asked: list[RankReport], silent_for_long: bool) -> bool:
        """Count how often the ranks seemed to wait, and return whether they are stuck.

        The ranks are certainly stuck if all of them wait in communications and at least one
        operation is open. Otherwise the wait may end by itself, so the ranks must seem to wait
        ``DOUBTS`` times in a row. The ranks are not stuck if a thread sleeps for a limited time,
        unless they have been ``silent_for_long``.
        """
        submission_dir = self.report.submission_dir
        open_on = {waiting.operation.rank for waiting in self.report.waiting()}
        communicating = [
            is_communicating(rank, submission_dir, rank.rank in open_on) for rank in asked
        ]
        seem_to = [
            known or seems_to_wait(rank, submission_dir)
            for known, rank in zip(communicating, asked)
        ]
        sleeps = not silent_for_long and any(
            stack_frames.may_wake(s, submission_dir) for rank in asked for s in rank.stacks
        )
        if not asked or sleeps or not all(seem_to):
            self.doubts = 0
            return False
        self.doubts += 1
        certain = all(communicating) and any(rank.rank in open_on for rank in asked)
        return certain or self.doubts >= DOUBTS
