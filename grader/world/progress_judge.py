"""Decides when a world has ended, and how: finished, failed, stuck, or late."""

import signal
import time
from collections.abc import Callable, Mapping

from grader.wire import thread_activity
from grader.world import stack_frames
from grader.world.held_ranks import HeldRanks
from grader.world.limits import Limits
from grader.world.report import Call, Ending, Raised, RankReport, WorldReport
from grader.world.stack_requests import Stacks, is_communicating, seems_to_wait
from grader.world.time_limits import TimeLimits
from grader.world.withheld_results import WithheldResults

# Seconds between two looks at what the ranks do. A look at more ranks takes longer. So the judge
# waits ``LOOK_SECONDS`` for each rank, but at least ``MIN_LOOK_SECONDS`` in total.
LOOK_SECONDS = 0.01
MIN_LOOK_SECONDS = 0.05
# If every failed rank only reports that a peer has gone, ``grace_seconds`` is multiplied by this.
# So the rank at fault has time to fail, too.
VICTIMS_PATIENCE = 20
# When this part of a call's time limit has passed, ranks that are held until ``STANDSTILL`` are
# released. Ranks that have sent nothing for this part of the limit count as silent for long.
LONG_PART = 1 / 4
# Ranks may seem to wait, but nothing proves that they wait for ever. If they seem to wait this many
# times in a row, the judge concludes that they are stuck.
DOUBTS = 3
# The judge makes a step at least every 0.2 seconds. If there was no step for this many seconds, the
# judge was stopped, for instance by Ctrl-Z. This time counts against no limit.
PAUSE_SECONDS = 2.0


class ProgressJudge:
    """Decides when one world has ended, and sets ``report.ending``.

    Its evidence is the ranks' frames, the activity of their threads, and the hub's reports. A
    verdict of *stuck* needs evidence that every rank waits. Either the hub reports this, or the
    stacks show waits, and are the same in two readings in a row. The judge reads the stacks when
    the hub reports a standstill, when the threads are idle, or when a limit is exceeded.

    Three words mean different things. A *standstill* is what the hub reports: every rank waits for
    an operation or for the judge, and no operation can be completed. A world is *stuck* when the
    judge has concluded that no rank will go on. If the ranks wait for each other, the message to
    the student calls this a *deadlock* (``diagnosis.root_cause``).

    Args:
        calls: the calls of the world, in order.
        report: the report of the world. The judge reads it, and sets its ``ending``.
        limits: the limits of the world.
        pids: the world's own table rank → pid, not a copy.
        held: the ranks that have to be late in a check.
        ask_moves: sends the hub the question how many moves it has counted (see
            ``stack_requests``). The answer is written to ``stacks.moves``.
        ask_hub_for_results: asks the hub to give idle ranks the results and messages that it
            withholds (see ``withheld_results``). The answer comes to ``on_results``.
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
        # the ending to conclude as soon as the stacks have arrived: STUCK or LATE
        self.verdict_pending: Ending | None = None
        self.watch = thread_activity.Watch()
        self.times = TimeLimits(limits, pids, self.watch)
        self.heard = self.stepped = time.monotonic()
        self.failed_at: float | None = None
        # The ranks that were held when the hub reported a standstill. None if the hub has reported
        # no standstill, or if the standstill is over.
        self.held_at_standstill: list[int] | None = None
        self.frames = self.frames_before_standstill = 0
        self.is_certain = False  # whether it is certain that no rank will ever go on
        self.doubts = 0  # how many times in a row the ranks only seemed to be stuck
        hub_may_withhold = any(call.slow_gathers or call.clocks for call in calls)
        self.withheld = WithheldResults(hub_may_withhold, ask_hub_for_results)

    @property
    def is_at_standstill(self) -> bool:
        """Return whether the hub has reported a standstill that is not over."""
        return self.held_at_standstill is not None

    # ——— events

    def on_started(self) -> None:
        """Begin all time limits now, because the ranks have just been started.

        Before their start, the fork server may have imported modules, or started other worlds.
        """
        self.times.begin()
        self.heard = time.monotonic()

    def on_reused_ranks(self) -> None:
        """Forget the time that was excused in earlier checks of these ranks."""
        self.watch.look(self.pids.values(), time.monotonic())
        self.times.spending.look(list(self.pids.values()))
        self.watch.excuse(self.times.spending.supervisors)
        self.times.forget_earlier_checks()

    def on_gpus(self) -> None:
        """Record that the ranks of this world start their GPUs before their first call."""
        self.times.starting = set(range(self.report.size))

    def on_call_began(self, rank: int) -> None:
        """Record that a rank has begun a call. It has started its GPU by then, if it has one."""
        self.times.on_gpu_started(rank)
        self.report.ranks[rank].busy = False  # it has computed nothing in this call yet

    def on_frame(self) -> None:
        """Record that a rank has sent a frame.

        If the hub has reported a standstill, the frame ends the standstill, unless the hub passed
        the frame on before this report.
        """
        self.frames += 1
        if self.frames > self.frames_before_standstill:
            self.held_at_standstill = None
        self.watch.moved()
        self.doubts, self.heard, self.stacks.before = 0, time.monotonic(), None

    def on_standstill(self, held_at_standstill: list[int], frames: int) -> None:
        """Record the hub's report that every rank waits. ``step`` acts on this report.

        ``held_at_standstill`` are the ranks that were held when the hub reported. ``frames`` is the
        number of frames that the hub had passed on by then. The hub's reports and the ranks' frames
        arrive on different sockets. If the judge has received more than ``frames`` frames, a rank
        has sent a frame after the report. Then the standstill is over, and is not recorded.
        """
        if self.frames <= frames:
            self.held_at_standstill = held_at_standstill
            self.frames_before_standstill = frames

    def on_results(self, given: int) -> None:
        """Record the hub's answer to ``ask_hub_for_results``.

        ``given`` is the number of withheld results and messages that the hub has given to idle
        ranks.
        """
        self.withheld.on_answer(given)
        if given:
            self.watch.moved()

    def on_outcome(self) -> None:
        """Record that a call has ended on a rank. The time of the next call begins now."""
        self.times.begin_call()

    # ——— conclusions

    def step(self, now: float, silent: bool) -> None:
        """Set ``report.ending`` if the world has ended by now; otherwise look for evidence.

        ``now`` is the monotonic time in seconds. ``silent`` says whether nothing has arrived since
        the last step.
        """
        if (pause := now - self.stepped) > PAUSE_SECONDS:
            self.times.skip(pause)
            self.heard = now
            self.watch.moved()
        self.stepped = now
        self._forgive_crashes()
        if self.report.ending or self._end_if_settled(now, silent):
            return
        if self.stacks.are_awaited:
            self._read_stacks(now)
        elif self.held_at_standstill is not None and silent:
            self._act_on_standstill(self.held_at_standstill, now)
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
        """Set the ending if the ranks finished or failed. Return whether there is an ending.

        If one rank has failed, the other ranks get some time to fail by themselves, unless the hub
        says that every rank waits.
        """
        failed = [rank for rank in self.report.ranks if self._has_failed(rank)]
        if not self._unsettled():
            self.report.ending = Ending.FAILED if failed else Ending.FINISHED
        elif failed:
            self.failed_at = self.failed_at or now
            nobody_moves = self.is_at_standstill and silent
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
        """Look at the activity of the ranks, and react to the first of these cases:

        1. A limit of processor time is exceeded: ask for the call stacks.
        2. ``LONG_PART`` of the call's time limit has passed, and ranks are held until
           ``STANDSTILL``: release them, because the other ranks may wait in a way that looks like
           computing.
        3. A limit of wall time is exceeded: ask for the call stacks.
        4. All processes are idle: see ``_on_idle``. There are two exceptions: a rank still starts
           its GPU, or a rank is held by a delay with ``patience``. Both end by themselves.
        """
        used = self.times.used()
        spending = self.times.spending
        watched = {self.pids[rank.rank] for rank in self._unsettled() if rank.rank in self.pids}
        started = (spending.started.get(pid, ()) for pid in watched)
        idle = self.watch.look(watched.union(*started), now)
        self.watch.excuse(spending.supervisors)
        if not silent:
            self.watch.moved()
        call_is_long = self.times.in_call(now) > self.limits.wall_seconds * LONG_PART
        if limit := self.times.exceeded_processor_limit(used):
            self._note_busy_ranks(used)
            self._ask_stacks(now, Ending.LATE, limit)
        elif call_is_long and self._wake():
            pass  # the released ranks go on
        elif limit := self.times.exceeded_wall_limit(now):
            self._ask_stacks(now, Ending.LATE, limit)
        elif (
            idle >= thread_activity.IDLE_SECONDS
            and not self.held.any_is_patient
            and not self.times.starting
        ):
            self._on_idle(now)

    def _note_busy_ranks(self, used: Mapping[int, float]) -> None:
        """Note which ranks used more than half of the processor time that a call may use."""
        for rank, pid in self.pids.items():
            self.report.ranks[rank].busy = used.get(pid, 0.0) > self.times.cpu_allowed / 2

    def _on_idle(self, now: float) -> None:
        """Ask for the stacks of idle ranks, but first ask the hub for results that it withholds."""
        if self.withheld.on_idle():
            self._ask_stacks(now, Ending.STUCK)

    # ——— ranks that wait

    def _act_on_standstill(self, held_at_standstill: list[int], now: float) -> None:
        """Release held ranks that can go on; if there are none, ask for stacks.

        Do nothing if a rank of ``held_at_standstill`` has been released since the hub's report: the
        report is out of date. Do not ask for stacks while a rank is held by a delay with
        ``patience``: see ``Delay``. Such a delay ends by itself.
        """
        held = {rank.rank for rank in self.held.ranks()}
        self.held_at_standstill = None
        if not held.issuperset(held_at_standstill) or self._wake() or self.held.any_is_patient:
            return
        if self._others_wait_outside_operations():
            self.held.release_all()
        else:
            self.is_certain = True
            self._ask_stacks(now, Ending.STUCK)

    def _others_wait_outside_operations(self) -> bool:
        """Return whether ranks are held, and the other ranks wait for them, but in no operation.

        For example, the others wait for the held ranks to make a new group. The caller knows that
        the others wait. If an operation is open, they wait in it: then the world is stuck, and the
        message names this operation. If none is open, such a message would have nothing to name. So
        the caller releases the held ranks, and the check can report this wait: see
        ``CallEvidence.waits_for_nobody``.
        """
        return bool(self.held.ranks()) and not self.report.waiting()

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
        elif self.verdict_pending == Ending.LATE:
            # torch imports some modules on first use. The student is not responsible for this.
            if self.times.may_allow_imports and self._any_imports(asked):
                self.times.allow_imports(now)
            else:
                self._note_busy_ranks(self.times.used())
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
        elif self._others_wait_outside_operations():
            self.held.release_all()
            self.watch.moved()
        else:
            self.report.ending = Ending.STUCK

    def _any_imports(self, asked: list[RankReport]) -> bool:
        """Return whether a rank imports a module that is not the student's."""
        return any(
            stack_frames.is_importing(stack, self.report.submission_dir)
            for rank in asked
            for stack in rank.stacks
        )

    def _examine_waits(self, asked: list[RankReport], silent_for_long: bool) -> bool:
        """Count how often the ranks seemed to wait, and return whether they are stuck.

        The ranks are certainly stuck if all of them wait in communications and at least one
        operation is open. Otherwise the wait may end by itself, so the ranks must seem to wait
        ``DOUBTS`` times in a row. If a thread sleeps for a limited time, the ranks count as
        stuck only if they have been ``silent_for_long``.
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
