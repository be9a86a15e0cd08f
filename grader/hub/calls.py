"""Keeps which call each rank is in, and which functions the judge gave the rank for each call."""

from dataclasses import dataclass, field

from grader.hub.in_step import InStep
from grader.wire.served import PEAK, Served


@dataclass
class Calls:
    """The calls of the first ``size`` ranks, as the hub counts them, not as the ranks report."""

    size: int
    in_step: InStep  # ``in_step.towards`` has an entry for each call
    ended: list[int] = field(init=False)  # by rank: how many calls have ended
    served: list[list[Served]] = field(init=False)  # by rank and call: the judge's functions
    asks_for_peaks: bool = False  # whether the judge wants the peak of a rank's memory in any call

    def __post_init__(self) -> None:
        self.ended = [0] * self.size
        self.served = [[] for _ in range(self.size)]

    def current(self, rank: int) -> int:
        """Return the number of the call that a rank is in.

        Everything that the rank does after its last call counts as a part of that call.
        """
        return min(self.ended[rank], max(len(self.in_step.towards) - 1, 0))

    def are_over(self, rank: int) -> bool:
        """Return whether a rank has made its last call."""
        return 0 < len(self.in_step.towards) <= self.ended[rank]

    def given(self, rank: int, call: int) -> Served | None:
        """Return the functions that the judge gave a rank for a call; None if it gave none."""
        return self.served[rank][call] if call < len(self.served[rank]) else None

    def serve(self, rank: int, given: list[Served]) -> None:
        """Note which functions the judge gives a rank, for each of its calls."""
        self.served[rank] = given
        self.asks_for_peaks |= any(of_call.weighs == PEAK for of_call in given)

    def serves(self, rank: int, name: object) -> Served | None:
        """Return the judge's functions for a rank's current call, if one of them has this ``name``.

        Otherwise return None.
        """
        given = self.given(rank, self.current(rank))
        return given if given and isinstance(name, str) and given.has(name) else None
