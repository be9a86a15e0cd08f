"""The hub can withhold a message until its receiver has passed on the previous message.

``report.Call.in_step`` asks for this rule. The rule finds a mistake without measuring time: a rank
tries to receive all messages before it passes on the first message. Under this rule, all ranks then
wait for each other.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from grader.wire.events import Operation


@dataclass
class InStep:
    """Counts the messages of each rank in each call, and decides which messages have to wait.

    ``towards[c]`` is the direction in which call c passes messages on: +1 to the next rank, −1 to
    the rank before. It is 0 if the rule does not apply to call c.
    """

    towards: Sequence[int] = ()
    # (rank, call) → the number of messages in this direction that the rank has got
    received: Counter = field(default_factory=Counter)
    # (rank, call) → the number of messages in this direction that the rank has begun to send
    sent_on: Counter = field(default_factory=Counter)
    # each (rank, call) with a message that has arrived at the hub but has to wait
    withheld: set[tuple[int, int]] = field(default_factory=set)
    # each (rank, call) that the rule does not apply to any more
    lifted: set[tuple[int, int]] = field(default_factory=set)

    def _towards(self, operation: Operation) -> int:
        return self.towards[operation.call] if 0 <= operation.call < len(self.towards) else 0

    def note_sent(self, operation: Operation) -> bool:
        """Count a message that a rank has begun to send. Return whether the rule applies to it.

        If the rule applies, the rank may now receive one more message.
        """
        towards = self._towards(operation)
        if not towards or operation.peer != operation.rank + towards:
            return False
        self.sent_on[operation.rank, operation.call] += 1
        return True

    def note_received(self, receive: Operation, source: int) -> None:
        """Count a message that a rank gets, if the rule applies to messages from this sender.

        ``source`` is the sender. If the message is counted, the rank has no withheld message now.
        """
        if self._is_passed_on(receive, source):
            self.received[receive.rank, receive.call] += 1
            self.withheld.discard((receive.rank, receive.call))

    def withhold_unless_passed_on(self, receive: Operation, source: int, size: int) -> bool:
        """Withhold a receive's message unless its receiver has passed on the previous message.

        Return whether the message is withheld.

        ``source`` is the sender, and ``size`` is the world size. The last rank in the direction
        gets every message immediately, because it passes nothing on.
        """
        key = receive.rank, receive.call
        is_last = not 0 <= receive.rank + self._towards(receive) < size
        if not self._is_passed_on(receive, source) or is_last or key in self.lifted:
            return False
        if self.received[key] <= self.sent_on[key]:
            return False
        self.withheld.add(key)
        return True

    def _is_passed_on(self, receive: Operation, source: int) -> bool:
        towards = self._towards(receive)
        return bool(towards) and source == receive.rank - towards

    def lift(self) -> list[tuple[int, int, int]]:
        """Stop withholding messages. Return which messages were not passed on.

        Use this when all ranks wait and some messages are withheld. Until the current call of a
        receiver ends, no further message to this receiver is withheld.

        Return (sender, call, number) for each withheld message. ``number`` is the number of the
        message before it, which the receiver has not passed on.
        """
        found = [
            (rank - self.towards[call], call, self.received[rank, call] - 1)
            for rank, call in sorted(self.withheld)
        ]
        self.lifted |= self.withheld
        self.withheld.clear()
        return found
