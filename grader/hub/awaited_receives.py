"""The hub can withhold a message until its receiver waits for it, and then measure the receiver.

``report.Call.clocks`` asks for this rule. At the moment at which a rank begins to wait for a
message, the hub measures how much processor time the rank has used. So the judge learns whether a
rank has computed one micro-batch before it waits for the next one. If a rank reports its wait too
early, it gains nothing, because it has not yet used the processor time.

The hub measures only if all threads of the rank wait. If one thread waits for the next message
while another thread computes, this measurement would show nothing.
"""

from dataclasses import dataclass, field

from grader.hub.matching import Posted

Answer = tuple[Posted, bytes, dict[str, int]]  # the operation; the answer's bytes and other fields


@dataclass
class AwaitedReceives:
    """Withholds messages that no thread has waited for. A rank is in one call at a time."""

    # (rank, number) of a receive that no thread has waited for → its answer, if there is one
    unawaited: dict[tuple[int, int], Answer | None] = field(default_factory=dict)

    def note(self, posted: Posted) -> None:
        """Record an operation that a rank has issued in a call with this rule."""
        if posted.operation.kind == "recv":
            self.unawaited[posted.rank, posted.number] = None

    def withhold_unless_awaited(self, posted: Posted, blob: bytes, more: dict[str, int]) -> bool:
        """Withhold the answer of a receive that nobody waits for; return whether it is withheld."""
        key = posted.rank, posted.number
        if key not in self.unawaited:
            return False
        self.unawaited[key] = posted, blob, more
        return True

    def is_unawaited(self, rank: int, number: int) -> bool:
        return (rank, number) in self.unawaited

    def on_await(self, rank: int, number: int) -> Answer | None:
        """Record that a thread waits for a receive; return its withheld answer, if there is one."""
        return self.unawaited.pop((rank, number), None)

    def on_end(self, rank: int) -> list[Answer]:
        """Forget a rank's call, which has ended; return its withheld answers."""
        own = [key for key in self.unawaited if key[0] == rank]
        return [answer for key in own if (answer := self.unawaited.pop(key))]

    def held_bytes(self) -> int:
        return sum(len(answer[1]) for answer in self.unawaited.values() if answer)
