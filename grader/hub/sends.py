"""The hub gives a rank the answer of a send when the rank waits for it, and not before.

So the hub knows by itself which sends a rank has waited for, whatever the rank says.
"""

from dataclasses import dataclass, field


@dataclass
class Sends:
    """The sends of one rank in its current call that are not answered yet."""

    begun: int = 0
    # the number of a send → how many sends of the call have begun before it
    places: dict[int, int] = field(default_factory=dict)
    awaited: set[int] = field(default_factory=set)  # their receives are not complete yet
    received: set[int] = field(default_factory=set)  # nobody has waited for them yet

    def note(self, number: int) -> None:
        """Record a send that the rank has issued."""
        self.places[number] = self.begun
        self.begun += 1

    def keeps(self, number: int) -> bool:
        """Return whether the answer of an operation has to be kept until the rank waits for it."""
        if number not in self.places:
            return False  # it is no send of this call
        if number not in self.awaited:
            self.received.add(number)
            return True
        self.awaited.remove(number)
        del self.places[number]
        return False

    def on_wait(self, number: int) -> bool:
        """Record that the rank waits for this operation; return whether its answer was kept."""
        if number not in self.places:
            return False
        if number not in self.received:
            self.awaited.add(number)
            return False
        self.received.remove(number)
        del self.places[number]
        return True

    def on_end(self) -> tuple[list[int], list[int]]:
        """Forget the call, which has ended.

        Return the places of the sends that are not answered: their rank did not wait for them, or
        did not wait until the end. Return also the numbers of the answers that were kept.
        """
        places, kept = sorted(self.places.values()), sorted(self.received)
        self.begun = 0
        for own in (self.places, self.awaited, self.received):
            own.clear()
        return places, kept
