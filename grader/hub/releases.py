"""Gives a rank its withheld results and messages when the rank waits and cannot go on.

The hub withholds results of slow all-gathers (see ``slow_gathers``), and messages in calls that
measure processor time (see ``awaited_receives``).
"""

from collections.abc import Callable, Collection, Mapping
from math import inf
from time import monotonic, monotonic_ns

from grader.hub.answers import Answers
from grader.hub.awaited_receives import REST_SECONDS, Answer
from grader.hub.calls import Calls
from grader.hub.process_usage import UsageSource
from grader.hub.waits import Waits
from grader.wire import os_support, world_messages
from grader.wire.thread_activity import Watch

LOOK_SECONDS = REST_SECONDS / 4  # between two looks at the threads of a rank


class Releases:
    """Gives withheld results and messages in the calls of one check, and tells the judge each time.

    ``measures`` returns how much processor time a rank uses, and ``tell`` sends the judge a
    message.
    """

    def __init__(
        self,
        answers: Answers,
        waits: Waits,
        calls: Calls,
        measures: UsageSource,
        tell: Callable[[dict], None],
    ) -> None:
        self.answers, self.waits, self.calls = answers, waits, calls
        self.measures, self.tell = measures, tell
        self.watches: dict[int, Watch] = {}  # rank that is kept waiting → the watch of its threads

    def give_to_idle(self) -> int:
        """Give results and messages to idle ranks. Return how many were given in total.

        A rank gets at most one result and one message, and only what one of its threads waits for.
        """
        given = self.give_slow_results(self.answers.slow.awaited)
        for rank in self.answers.receives.kept_waiting():
            given += self._deliver_and_measure(rank)
        return given

    def give_slow_results(self, waits: Mapping[int, Collection]) -> int:
        """Give the results that ``SlowGathers.lift`` returns, and tell the judge. Return how many.

        ``waits`` says what each rank waits for.
        """
        awaited = self.answers.slow.lift(waits)
        for posted, blob, place in awaited:
            told = [posted.rank, posted.operation.call, place, monotonic_ns()]
            self.tell({world_messages.AWAITED_AT_ONCE: told})
            self.answers.answer_unless_unawaited(posted, blob)
        return len(awaited)

    def deliver_to_resting(self) -> int:
        """Deliver one message to each idle rank that is kept waiting. Return how many."""
        waiting = self.answers.receives.kept_waiting()
        self.watches = {rank: self.watches.get(rank) or Watch() for rank in waiting}
        idle = [rank for rank, watch in self.watches.items() if self._is_idle(rank, watch)]
        return sum(self._deliver_and_measure(rank) for rank in idle)

    def _is_idle(self, rank: int, watch: Watch) -> bool:
        """Look at a rank's threads if it is time. Return whether all have been idle long enough.

        A thread that runs or waits for a processor is not idle. A look that takes long does not
        count: this process was interrupted, and it is not known when the threads were in these
        states.
        """
        began = monotonic()
        if began - watch.looked < LOOK_SECONDS:
            return False
        idle = watch.look(self.measures.processes(rank), began)
        if monotonic() - began > REST_SECONDS / 2 or not watch.sees_threads_wait():
            watch.moved()
            return False
        return idle >= REST_SECONDS

    def forget_idle(self, rank: int) -> None:
        """Record that a rank has got an answer or has sent a frame, so it is not idle now."""
        self.watches.pop(rank, None)

    def seconds_to_look(self) -> float:
        """Return in how many seconds to call ``deliver_to_resting``; inf if no rank needs it."""
        waits = os_support.LINUX and self.answers.receives.kept_waiting()
        return LOOK_SECONDS if waits else inf

    def deliver_if_at_rest(self, rank: int) -> None:
        """If all threads of a rank wait, deliver one message that a thread waits for.

        If the rank is not measured any more, deliver all messages that threads wait for.
        """
        if rank in self.answers.receives.unmeasured:
            while answer := self.answers.receives.take(rank):
                self._deliver(answer)
        elif rank in self.waits.by_rank:
            self._deliver_and_measure(rank)

    def _deliver_and_measure(self, rank: int) -> bool:
        """Deliver one message to a rank at rest. Return False if no thread waits for a message.

        Before the delivery, tell the judge how much processor time the rank has used.
        """
        if not (answer := self.answers.receives.take(rank)):
            return False
        self.tell_spent(world_messages.SPENT_BEFORE_WAIT, rank)
        self._deliver(answer)
        return True

    def _deliver(self, answer: Answer) -> None:
        posted, blob, more = answer
        self.answers.answer_unless_unawaited(posted, blob, **more)

    def stop_measuring_busy_ranks(self) -> None:
        """Stop measuring the ranks for which ``note_spent`` returns True. Deliver their messages.

        Such a rank has used much processor time while it waited, or its time is unknown.
        """
        receives = self.answers.receives
        for rank in sorted(receives.kept_waiting()):
            if receives.note_spent(rank, self.measures.spent(rank)):
                self.deliver_if_at_rest(rank)

    def tell_spent(self, kind: str, rank: int) -> None:
        """Tell the judge how much processor time a rank has used."""
        self.tell({kind: [rank, self.calls.current(rank), self.measures.spent(rank)]})
