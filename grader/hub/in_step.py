"""Messages that a rank gets only when it has sent the one before on. A rule of the hub's: see
``report.Call.in_step``.

So a rank that receives all before it goes on stands still, as all do then, and whoever looks on
knows it without a clock.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from grader.wire.events import Operation


@dataclass
class Steps:
    """``towards[c]`` is where the messages of call c go: +1 to the next rank, −1 to the one before,
    0 without this rule.
    """

    towards: Sequence[int] = ()
    # (rank, call) → messages that the rank has got
    received: Counter = field(default_factory=Counter)
    sent_on: Counter = field(default_factory=Counter)  # likewise, and sent
    # (rank, call) that a message is there for
    withheld: set[tuple[int, int]] = field(default_factory=set)
    lifted: set[tuple[int, int]] = field(default_factory=set)

    def _towards(self, operation: Operation) -> int:
        return self.towards[operation.call] if 0 <= operation.call < len(self.towards) else 0

    def note_sent(self, operation: Operation) -> bool:
        """Count a message that a rank has started to send; return whether it may get another one
        for it.
        """
        towards = self._towards(operation)
        if not towards or operation.peer != operation.rank + towards:
            return False
        self.sent_on[operation.rank, operation.call] += 1
        return True

    def note_received(self, receive: Operation, source: int) -> None:
        """Count a message that a rank gets."""
        if self._is_passed_on(receive, source):
            self.received[receive.rank, receive.call] += 1
            self.withheld.discard((receive.rank, receive.call))

    def withholds(self, receive: Operation, source: int, size: int) -> bool:
        """Return whether this message has to wait, and remember it."""
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
        """Let go what is withheld: all ranks wait.

        Return (who sent it, call, the number of the message before).
        """
        found = [
            (rank - self.towards[call], call, self.received[rank, call] - 1)
            for rank, call in sorted(self.withheld)
        ]
        self.lifted |= self.withheld
        self.withheld.clear()
        return found
