"""The hub withholds the answer of a send until the sending rank waits for the send.

With the answer, the hub gives the rank a receipt: a number that nobody can guess. When the rank
returns from a call, it has to show the receipts of the call's sends. So a send counts as awaited
only if its message was received, and the rank read the answer before it returned from the call. The
hub cannot see whether a thread of the rank really waited. The hub has to trust the rank's report of
a wait.
"""

import secrets
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass
class Sends:
    """The sends of one rank in its current call."""

    begun: Counter[int] = field(default_factory=Counter)  # call → how many sends have begun
    # number of an unanswered send → its place: how many sends of the same call began earlier
    places: dict[int, int] = field(default_factory=dict)
    awaited: set[int] = field(default_factory=set)  # awaited, but not received yet
    received: set[int] = field(default_factory=set)  # received, but not awaited yet
    given: dict[int, int] = field(default_factory=dict)  # a receipt → the place of its send

    def note(self, number: int, call: int) -> None:
        """Record a send that the rank has issued."""
        self.places[number] = self.take_place(call)

    def take_place(self, call: int) -> int:
        """Count a send of a call, and return how many have begun before it."""
        self.begun[call] += 1
        return self.begun[call] - 1

    def withhold_unless_awaited(self, number: int) -> bool:
        """Withhold the answer of a completed send if the rank does not wait for the send yet.

        Return whether it is withheld. Answers of other operations are not withheld here. Call this
        once, when the operation is complete.
        """
        if number not in self.places or number in self.awaited:
            return False
        self.received.add(number)
        return True

    def on_wait(self, number: int) -> bool:
        """Record that the rank waits for this operation. Return whether its answer was withheld.

        If it was withheld, the caller has to give it to the rank now.
        """
        if number in self.places and number not in self.received:
            self.awaited.add(number)
        return number in self.received

    def receipt(self, number: int) -> dict:
        """Return the fields to add to an answer that the rank gets now.

        For a send there is one field, a new receipt. For any other operation there is none.
        """
        if number not in self.places:
            return {}  # the operation is no send of this call
        self.awaited.discard(number)
        self.received.discard(number)
        drawn = secrets.randbits(60)
        self.given[drawn] = self.places.pop(number)
        return {"receipt": drawn}

    def on_end(self, receipts: Collection[int]) -> tuple[list[int], list[int]]:
        """Forget the call, which has ended. Return its unawaited sends and its withheld answers.

        ``receipts`` are those that the rank has shown. The result is two lists: the places of
        unawaited sends, and the numbers of sends whose answers were withheld.
        """
        unread = [place for drawn, place in self.given.items() if drawn not in receipts]
        places, withheld = sorted([*self.places.values(), *unread]), sorted(self.received)
        for own in (self.places, self.awaited, self.received, self.given):
            own.clear()
        return places, withheld
