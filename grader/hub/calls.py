"""Stores the current call of each rank, and the judge's options for each call of a rank."""

from dataclasses import dataclass, field

from grader.hub.in_step import InStep
from grader.wire.callbacks import PEAK, CallOptions


@dataclass
class Calls:
    """The calls of the first ``size`` ranks. The hub counts these calls itself."""

    size: int
    in_step: InStep  # ``in_step.towards`` has an entry for each call
    ended: list[int] = field(init=False)  # by rank: how many calls have ended
    options: list[list[CallOptions]] = field(init=False)  # by rank and call
    asks_for_peaks: bool = False  # whether the judge asks for the peak of a rank's memory in a call

    def __post_init__(self) -> None:
        self.ended = [0] * self.size
        self.options = [[] for _ in range(self.size)]

    def current(self, rank: int) -> int:
        """Return the number of the call that a rank is in.

        Everything that the rank does after its last call counts as a part of that call.
        """
        return min(self.ended[rank], max(len(self.in_step.towards) - 1, 0))

    def are_over(self, rank: int) -> bool:
        """Return whether all calls of a rank have ended; False if there are no calls."""
        return 0 < len(self.in_step.towards) <= self.ended[rank]

    def options_of(self, rank: int, call: int) -> CallOptions | None:
        """Return the judge's options for a call of a rank; None if there are none."""
        return self.options[rank][call] if call < len(self.options[rank]) else None

    def note_options(self, rank: int, options: list[CallOptions]) -> None:
        """Note the judge's options for each call of a rank."""
        self.options[rank] = options
        self.asks_for_peaks |= any(of_call.weighs == PEAK for of_call in options)

    def options_that_serve(self, rank: int, name: object) -> CallOptions | None:
        """Return the options of a rank's current call, or None.

        Return None if the judge provides no function ``name`` in this call.
        """
        options = self.options_of(rank, self.current(rank))
        return options if options and isinstance(name, str) and options.serves(name) else None
