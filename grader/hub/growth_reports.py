"""Tells the judge how much the memory of ranks grows in their calls, if a check asks for this.

``weighing`` measures the memory of a rank. This module decides when to measure it. To *weigh* a
rank means to measure its memory.
"""

from collections import Counter
from collections.abc import Callable
from math import inf

from grader.hub.calls import Calls
from grader.hub.connection import End
from grader.hub.outstanding import Outstanding
from grader.hub.process_usage import UsageSource
from grader.hub.weighing import Weighing
from grader.wire import frames, world_messages
from grader.wire.callbacks import PEAK, Growth
from grader.wire.events import Operation


class GrowthReports:
    """Tells the judge whenever the growth of a rank's memory reaches a new maximum in a call."""

    def __init__(
        self, measures: UsageSource, ranks: list[End], tell: Callable[[dict], None]
    ) -> None:
        self.weighing, self.ranks, self.tell = Weighing(measures), ranks, tell
        self.have_begun: set[int] = set()  # the ranks that have begun a call

    def begin(self, calls: Calls, outstanding: list[Outstanding]) -> None:
        """Begin the calls of a check, and forget those of the check before."""
        self.calls, self.outstanding = calls, outstanding
        self.issued: Counter[tuple[int, int]] = Counter()  # (rank, call) → operations issued
        self.weighing.forget_calls()

    def before_calls(self, rank: int, frame: frames.Frame) -> None:
        """Note how much memory a rank has before its first call. An EVENT frame begins the call."""
        if rank in self.have_begun:
            return
        if frame.kind == frames.EVENT:
            self.have_begun.add(rank)
        measures_memory = any(options.weighs for options in self.calls.options[rank])
        has_settled = frame.kind == frames.STORE and frame.meta.get("keys") == [frames.SETTLED_KEY]
        if measures_memory and has_settled:
            self.weighing.on_settled(rank)
        else:
            self.weighing.on_first_frame(rank)

    def on_operation(self, operation: Operation) -> None:
        """Count an operation. Measure the rank's memory if ``Weighing.decide_at`` returns True."""
        rank, call = operation.rank, operation.call
        options = self.calls.options_of(rank, call)
        # Weighing takes time. Do not weigh at a receive: a send before or after it is enough.
        may_weigh = options and options.weighs and operation.kind != "recv"
        if may_weigh and self.weighing.decide_at(operation, self.calls.size):
            self._weigh(rank)
        self.issued[rank, call] += 1

    def on_return(self, rank: int) -> None:
        """Measure the memory of a rank that returns from a call: see ``Weighing.at_the_end``."""
        self._weigh(rank, has_returned=True)

    def on_network(self, rank: int) -> None:
        """Measure a rank's memory if it has many more bytes in the network than before."""
        if self.weighing.record_if_much(rank, self.calls.current(rank), self._in_network(rank)):
            self._weigh(rank)

    def between_operations(self) -> None:
        """Measure the memory of all ranks at random times, if a check asks for the peak.

        The kernel's peak also counts pages of files. A rank can give such pages back just before
        its own memory grows. The kernel's peak then does not show the growth. This method shows the
        growth, because the method counts no pages of files.
        """
        if self.seconds_to_look() > 0:
            return
        self.weighing.draw_next_look()
        for rank in self.have_begun:
            call = self.calls.current(rank)
            options = self.calls.options_of(rank, call)
            if options and options.weighs == PEAK and self.ranks[rank].is_open:
                growth = self.weighing.between(rank, call, self.issued[rank, call])
                self._tell_growth(rank, call, growth)

    def seconds_to_look(self) -> float:
        """Return in how many seconds to call ``between_operations``; inf if it is not needed."""
        return self.weighing.seconds_to_look() if self.calls.asks_for_peaks else inf

    def _weigh(self, rank: int, has_returned: bool = False) -> None:
        """Tell the judge how much a rank's memory has grown in its call, if the check asks."""
        call = self.calls.current(rank)
        options = self.calls.options_of(rank, call)
        if options and options.weighs:
            weigh = self.weighing.at_the_end if has_returned else self.weighing.new_most
            in_network = self._in_network(rank)
            growth = weigh(rank, call, options.weighs, self.issued[rank, call], in_network)
            self._tell_growth(rank, call, growth)

    def _in_network(self, rank: int) -> int:
        """Return how many bytes the hub holds for a rank: see ``Growth.in_network``."""
        return self.ranks[rank].queued + self.outstanding[rank].held_bytes()

    def _tell_growth(self, rank: int, call: int, growth: Growth | None) -> None:
        if growth is not None:
            self.tell({world_messages.GROWN: [rank, call, *growth]})
