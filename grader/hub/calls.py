"""Which call each rank is in, and what the judge has handed to the rank for this call."""

from dataclasses import dataclass, field

from grader.hub.in_step import Steps
from grader.wire.served import Served


@dataclass
class Calls:
    """The calls of the first ``size`` ranks. The rank's own word for its call does not count."""

    size: int
    steps: Steps  # ``steps.towards`` has an entry for each call
    ended: list[int] = field(init=False)  # by rank: how many calls have ended
    served: list[list[Served]] = field(init=False)  # by rank and call: what the judge has handed

    def __post_init__(self) -> None:
        self.ended = [0] * self.size
        self.served = [[] for _ in range(self.size)]

    def current(self, rank: int) -> int:
        """Return the number of the call that a rank is in.

        Everything that the rank does after its last call counts as a part of that call.
        """
        return min(self.ended[rank], max(len(self.steps.towards) - 1, 0))

    def are_over(self, rank: int) -> bool:
        """Return whether a rank has made its last call."""
        return 0 < len(self.steps.towards) <= self.ended[rank]

    def given(self, rank: int, call: int) -> Served | None:
        """Return what the judge has handed to a rank for a call, or None."""
        return self.served[rank][call] if call < len(self.served[rank]) else None

    def serves(self, rank: int, name: object) -> Served | None:
        """Return what a rank was given for its current call, if it can be used under this ``name``.

        Otherwise return None.
        """
        given = self.given(rank, self.current(rank))
        return given if given and isinstance(name, str) and given.has(name) else None
