"""The hub sends the answer of each operation as soon as the rank is allowed to have it.

An operation is answered when it is complete. But several rules can withhold the answer until the
rank has done something else. An answer passes these rules in a fixed order: ``awaited_receives``,
``slow_gathers``, ``sends``, ``outstanding``.
"""

from collections.abc import Callable

from grader.hub.awaited_receives import AwaitedReceives
from grader.hub.connection import Connections
from grader.hub.matching import Posted
from grader.hub.outstanding import Outstanding
from grader.hub.sends import Sends
from grader.hub.slow_gathers import SlowGathers
from grader.wire import frames
from grader.wire.callbacks import CallOptions


class Answers:
    """The answers that the first ``size`` ranks of a world get in the calls of one check."""

    def __init__(
        self,
        connections: Connections,
        size: int,
        on_answer: Callable[[int, int], None],
        after_answer: Callable[[int], None],
        on_withheld: Callable[[int], None],
    ) -> None:
        """Begin without any operation.

        Args:
            connections: the sockets of the ranks.
            size: how many ranks have calls to make.
            on_answer: is called with the rank and the operation's number before an answer is sent.
            after_answer: is called with the rank after an answer was sent.
            on_withheld: is called with the rank after ``awaited_receives`` has withheld a message.
        """
        self.connections, self.on_answer, self.after_answer = connections, on_answer, after_answer
        self.on_withheld = on_withheld
        self.outstanding = [Outstanding() for _ in range(size)]  # by rank
        self.sends = [Sends() for _ in range(size)]  # by rank
        self.slow, self.receives = SlowGathers(), AwaitedReceives()

    def note(self, posted: Posted, options: CallOptions | None) -> None:
        """Record an operation if its call uses ``slow_gathers`` or ``awaited_receives``."""
        if options and options.slow_gathers:
            self.slow.note(posted)
        if options and options.clocks:
            self.receives.note(posted)

    def expect(self, rank: int, number: object) -> None:
        """Record that a rank expects an answer with this number: see ``Outstanding.expect``."""
        self.outstanding[rank].expect(number, received=len(self.sends[rank].received))

    def are_empty(self) -> bool:
        """Return whether no rank expects an answer or owes bytes."""
        return all(own.is_empty() for own in self.outstanding)

    def held_bytes(self) -> int:
        """Return how many bytes of operations and of withheld answers the hub holds."""
        return sum(own.held_bytes() for own in self.outstanding) + self.receives.held_bytes()

    # ——— the steps that send an answer: each step except the last can withhold the answer

    def answer(self, posted: Posted, blob: bytes, **more: int) -> None:
        """Answer an operation, unless ``awaited_receives`` withholds the received message."""
        if self.receives.withhold(posted, blob, more):
            self.on_withheld(posted.rank)
        else:
            self._answer_unless_slow(posted, blob, **more)

    def _answer_unless_slow(self, posted: Posted, blob: bytes, **more: int) -> None:
        """Answer an operation, unless ``slow_gathers`` withholds the result of an all-gather."""
        if not self.slow.withhold_until_use(posted, blob):
            self.answer_unless_unawaited(posted, blob, **more)

    def answer_unless_unawaited(self, posted: Posted, blob: bytes, **more: int) -> None:
        """Answer an operation, unless ``sends`` withholds the answer of a send.

        In both cases, the bytes that the operation sent do not count as held any more.
        """
        self.outstanding[posted.rank].operation_bytes -= len(posted.blob)
        sends = self.sends[posted.rank]
        if not sends.withhold_unless_awaited(posted.number):
            meta = {"to": posted.number, **more, **sends.receipt(posted.number)}
            self._write_unless_owing(posted.rank, meta, blob)

    def _write_unless_owing(self, rank: int, meta: dict, blob: bytes = b"") -> None:
        """Write an answer, or withhold it (see ``outstanding``) if the rank owes a send's bytes."""
        if not self.outstanding[rank].withhold_if_owing(meta, blob):
            self.write(rank, meta, blob)

    def write(self, rank: int, meta: dict, blob: bytes = b"") -> None:
        """Write an answer to a rank immediately, if the rank's connection is open."""
        end = self.connections.ranks[rank]
        self.outstanding[rank].unanswered.discard(meta["to"])
        self.on_answer(rank, meta["to"])
        if not end.is_open:
            return
        try:
            for part in end.reader.parts(frames.ANSWER, meta, blob):
                end.write(part)
        except OSError:
            self.connections.hang_up(rank)
        self.after_answer(rank)

    # ——— events of a rank after which the hub sends withheld answers

    def on_await(self, rank: int, number: int) -> None:
        """Record that a thread waits for an operation.

        If the operation is a send whose answer was withheld, write this answer.
        """
        self.slow.on_await(rank, number)
        self.receives.on_await(rank, number)
        if self.sends[rank].on_wait(number):
            self._write_unless_owing(rank, {"to": number, **self.sends[rank].receipt(number)})

    def on_use(self, rank: int) -> None:
        """Record that a function of the judge has ended. Write the results withheld until then."""
        for posted, blob in self.slow.on_use(rank):
            self.answer_unless_unawaited(posted, blob)

    def on_bytes(self, rank: int) -> None:
        """If a rank owes no more bytes, write the answers that ``outstanding`` withheld."""
        for meta, blob in self.outstanding[rank].take_withheld():
            self.write(rank, meta, blob)

    def on_end(self, rank: int, withheld: list[int]) -> None:
        """Write the answers withheld from a rank whose call has ended.

        ``withheld`` holds the numbers of the sends with such answers: see ``Sends.on_end``.
        """
        for number in withheld:
            self._write_unless_owing(rank, {"to": number})
        for posted, blob in self.slow.on_end(rank):
            self.answer_unless_unawaited(posted, blob)
        for posted, blob, more in self.receives.on_end(rank):
            self.answer_unless_unawaited(posted, blob, **more)
