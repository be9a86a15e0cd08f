"""The hub can withhold a message until its receiver is at rest, and then measure the receiver.

``report.Call.clocks`` asks for this rule. The hub delivers a message only when a thread waits for
it and the rank is at rest: no thread of the rank can go on by itself. Just before the delivery, the
hub measures how much processor time the rank has used. So the judge learns whether a rank has
computed with one message before it needs the next message. It does not matter which thread of the
rank receives, and which thread computes. A rank gains nothing if it reports its wait too early: the
measured processor time is then too small.

A rank at rest gets one message, the earliest that one of its threads waits for. Then it is no
longer at rest. A rank is at rest if it reports that all its threads wait for the hub. But a
thread can also wait for another thread of the same rank, and the hub does not see this. So a rank
is also at rest if its threads have been idle for ``REST_SECONDS``. This time is short: after a
longer sleep, some virtual machines count milliseconds that the process has not used.

A program that asks again and again whether a message has come is never at rest. If its rank uses
more than ``MAX_RESTLESS`` of processor time while a message is withheld, the hub stops measuring
the rank. From then on, the hub delivers a message as soon as a thread waits for this message.
"""

from dataclasses import dataclass, field

from grader.hub.matching import Posted

Answer = tuple[Posted, bytes, dict[str, int]]  # the operation; the answer's bytes and other fields

REST_SECONDS = 0.005
MAX_RESTLESS = 500_000_000  # nanoseconds of processor time


@dataclass
class AwaitedReceives:
    """Withholds messages until their receivers are at rest.

    A rank is in only one call at a time, so the fields do not name the call.
    """

    # undelivered receive, as (rank, number) → its answer, or None if there is no answer yet; the
    # receives of a rank are in the order of issue
    undelivered: dict[tuple[int, int], Answer | None] = field(default_factory=dict)
    awaited: set[tuple[int, int]] = field(default_factory=set)  # those that a thread waits for
    unmeasured: set[int] = field(default_factory=set)  # ranks that are not measured in this call
    # rank → its processor time at the first ``note_spent`` after the rank last got a message or
    # ended a call
    spent_before: dict[int, int] = field(default_factory=dict)

    def note(self, posted: Posted) -> None:
        """Record an operation that a rank has issued in a call with this rule."""
        if posted.operation.kind == "recv":
            self.undelivered[posted.rank, posted.number] = None

    def withhold(self, posted: Posted, blob: bytes, more: dict[str, int]) -> bool:
        """Withhold the answer of a recorded receive. Return whether the answer is withheld."""
        key = posted.rank, posted.number
        if key not in self.undelivered:
            return False
        self.undelivered[key] = posted, blob, more
        return True

    def on_await(self, rank: int, number: int) -> None:
        """Record that a thread waits for an operation."""
        if (rank, number) in self.undelivered:
            self.awaited.add((rank, number))

    def take(self, rank: int) -> Answer | None:
        """Take the earliest withheld answer that a thread of a rank waits for, if there is one."""
        for key, answer in self.undelivered.items():
            if answer and key[0] == rank and key in self.awaited:
                del self.undelivered[key]
                self.awaited.remove(key)
                self.spent_before.pop(rank, None)
                return answer
        return None

    def kept_waiting(self) -> set[int]:
        """Return the ranks in which a thread waits for a message that is withheld."""
        return {key[0] for key in self.awaited if self.undelivered[key]}

    def note_spent(self, rank: int, spent: int) -> bool:
        """Note how much processor time a rank has used. Return whether to stop measuring the rank.

        Call this again and again while ``kept_waiting`` returns the rank. ``spent`` is 0 if the
        system does not report the time.
        """
        before = self.spent_before.setdefault(rank, spent)
        stops = not spent or spent - before > MAX_RESTLESS
        if stops:
            self.unmeasured.add(rank)
        return stops

    def on_end(self, rank: int) -> list[Answer]:
        """Forget a rank's call, which has ended. Return its withheld answers."""
        own = [key for key in self.undelivered if key[0] == rank]
        self.awaited.difference_update(own)
        self.unmeasured.discard(rank)
        self.spent_before.pop(rank, None)
        return [answer for key in own if (answer := self.undelivered.pop(key))]

    def held_bytes(self) -> int:
        return sum(len(answer[1]) for answer in self.undelivered.values() if answer)
