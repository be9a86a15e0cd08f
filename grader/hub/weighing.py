"""Measures by how much the memory of each rank grows in a call.

To *weigh* a rank means to measure its memory. The numbers come from the system, which the
supervisor asks. A rank's own report of its memory does not count. A rank must not know when it is
weighed, because it could hide its memory at these times. So some of the times are drawn at random.
Ranks are forked from this process, but they cannot predict SystemRandom: it has no state that a
fork could copy.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from random import SystemRandom
from time import monotonic

from grader.hub.process_usage import MAX_MAPPED, UsageSource
from grader.wire.callbacks import PEAK, Growth
from grader.wire.events import Operation
from grader.wire.frames import FrameError

# To weigh a rank takes about 2 ms. In a world of more than ``SMALL_WORLD`` ranks, the hub weighs a
# rank at a small send only with probability ``SMALL_SEND_CHANCE``. Otherwise weighing takes nearly
# half of the hub's time. A send is small if the rank's earlier sends in this call together have at
# least ``SMALL_SEND_RATIO`` times as many bytes.
SMALL_WORLD = 4
SMALL_SEND_RATIO = 8
SMALL_SEND_CHANCE = 1 / 3
# To measure overwritten memory takes about 5 ms. The hub does so at the first measurement of a
# call, and later with this probability, whenever it weighs the rank.
OVERWRITTEN_CHANCE = 1 / 8
# To read which files and shared memory a rank maps takes much of the remaining time. The hub does
# so the first ``ALWAYS_MAPPED`` times that it weighs a rank in a call, and later with probability
# ``MAPPED_CHANCE``.
ALWAYS_MAPPED = 8
MAPPED_CHANCE = 1 / 4
# The hub also weighs a rank when it holds at least this many more bytes for the rank than before.
NETWORK_STEP = 1 << 18
# If a check asks for the peak, the hub also looks at all ranks between their operations, on average
# once in ``LOOK_SECONDS``. A look takes 0.1 ms for each rank, because it counts no files and no
# other processes.
LOOK_SECONDS = 0.006
CHANCE = SystemRandom()


@dataclass(slots=True)
class AtStart:
    """The memory of a rank before any student code ran, in bytes.

    ``mapped`` and ``overwritten`` are measured only after the rank has settled. Until then they are
    None.
    """

    own: int  # 0 if the system does not report it
    mapped: int | None = None
    overwritten: int | None = None  # also None if the system does not report it


@dataclass(slots=True)
class InCall:
    """What ``Weighing`` keeps of one call of one rank. All sizes are in bytes."""

    # The maxima of the measurements in this call: of the growth of the rank's own memory, and of
    # all bytes of ``Growth`` together. None before the first measurement.
    most_own: int | None = None
    most_together: int | None = None
    times: int = 0  # how often the rank was weighed; looks between operations do not count
    # the bytes from files that do not count in the peak: those that the rank had when it was first
    # weighed in this call, up to a limit; None before
    mapped: int | None = None
    sent: int = 0  # the bytes of all sends that the rank has issued
    in_network: int = 0  # the ``Growth.in_network`` that ``record_if_much`` recorded last

    @property
    def is_measured(self) -> bool:
        """Return whether there was a measurement, be it at an operation or between operations."""
        return self.most_own is not None

    def record(self, growth: Growth) -> bool:
        """Record a measurement. Return whether it is the first one, or one of the maxima grows."""
        own = growth.own
        together = growth.own + growth.overwritten + growth.in_network
        if self.most_own is None or self.most_together is None:
            self.most_own, self.most_together = own, together
            return True
        is_new_most = own > self.most_own or together > self.most_together
        self.most_own = max(self.most_own, own)
        self.most_together = max(self.most_together, together)
        return is_new_most


@dataclass
class Weighing:
    """Weighs the ranks of a world, that is, measures their memory.

    Below, ``weighs`` says which memory of a rank a check asks for: the memory that the rank has now
    (``SETTLED``), or the most that it ever had (``PEAK``). ``in_network`` is the number of bytes
    that the hub holds for a rank: see ``Growth``.
    """

    measures: UsageSource
    starts: dict[int, AtStart] = field(default_factory=dict)  # rank → its memory at its start
    # (rank, call) → what is kept of this call
    calls: dict[tuple[int, int], InCall] = field(default_factory=lambda: defaultdict(InCall))
    next_at: float = 0.0  # the time of the next look between operations

    def seconds_to_look(self) -> float:
        """Return in how many seconds to look between operations; 0 if it is time now."""
        return max(0.0, self.next_at - monotonic())

    def draw_next_look(self) -> None:
        """Draw the time of the next look between operations."""
        self.next_at = monotonic() + CHANCE.uniform(0, 2 * LOOK_SECONDS)

    def record_if_much(self, rank: int, call: int, in_network: int) -> bool:
        """If ``in_network`` is much larger than before, record it and return True.

        Otherwise return False. It is much larger if it exceeds the last recorded number of this
        call by at least ``NETWORK_STEP``. Then the caller has to weigh the rank.
        """
        kept = self.calls[rank, call]
        is_much = in_network >= kept.in_network + NETWORK_STEP
        if is_much:
            kept.in_network = in_network
        return is_much

    def forget_calls(self) -> None:
        """Forget the calls of the previous check. Keep the sizes that the ranks began with."""
        self.calls.clear()

    def on_first_frame(self, rank: int) -> None:
        """Note how much memory a rank has when its first frame arrives, before its first call.

        Student code has not run yet. Do nothing if an earlier frame of the rank has arrived.
        """
        if rank not in self.starts:
            self.starts[rank] = AtStart(self.measures.memory(rank, True))

    def on_settled(self, rank: int) -> None:
        """Note how much memory a rank has when it has settled, before its first call.

        A rank that will be weighed first reads its arguments and frees memory that it does not
        need. Then it sends one more frame, and waits: see ``Rank._settle``. This memory counts, and
        not the memory that the rank had at its first frame.
        """
        found = self.measures.resident(rank, True)
        # ``memory`` measures the same number as ``own``. If ``own`` is 0, try once more, because
        # every growth is the difference from this number.
        own = found.own or self.measures.memory(rank, True)
        self.starts[rank] = AtStart(own, found.mapped, self.measures.overwritten(rank))

    def decide_at(self, operation: Operation, size: int) -> bool:
        """Return whether to weigh a rank at an operation, in a world of ``size`` ranks.

        Call this only one time for each operation, because this method counts the bytes of sends,
        and may draw a random number.
        """
        if size <= SMALL_WORLD or operation.kind != "send":
            return True
        kept = self.calls[operation.rank, operation.call]
        is_small = operation.bytes * SMALL_SEND_RATIO <= kept.sent
        kept.sent += operation.bytes
        return not is_small or not kept.is_measured or CHANCE.random() < SMALL_SEND_CHANCE

    def new_most(
        self, rank: int, call: int, weighs: str, operations: int, in_network: int
    ) -> Growth | None:
        """Weigh a rank, and return the growth of its memory if this is a new maximum in the call.

        Two numbers can have a new maximum: the rank's own memory, and all bytes of ``Growth``
        together. Return None if neither has one, or if the system does not report the rank's
        memory. ``operations`` and ``in_network`` are fields of ``Growth``.

        Raises:
            FrameError: the system reported overwritten memory earlier, and no longer reports it.
        """
        kept = self.calls[rank, call]
        kept.times += 1
        with_mapped = kept.times <= ALWAYS_MAPPED or CHANCE.random() < MAPPED_CHANCE
        if weighs == PEAK:
            memory = self._peak(rank, kept, with_mapped)
        else:
            memory = self.measures.memory(rank, with_mapped)
        if not memory:
            return None
        # ``CallMeasurements.grown`` subtracts the overwritten memory of a call's first measurement,
        # so the first measurement needs it. A look between operations does not measure it. But
        # after such a look, this measurement is not the first one, and does not need it.
        is_drawn = not kept.is_measured or CHANCE.random() < OVERWRITTEN_CHANCE
        overwritten = self._overwritten(rank) if is_drawn else 0
        growth = Growth(operations, memory - self.starts[rank].own, overwritten, in_network)
        return growth if kept.record(growth) else None

    def between(self, rank: int, call: int, operations: int) -> Growth | None:
        """Measure a rank's present memory between two of its operations: see ``new_most``."""
        memory = self.measures.process_memory(rank)
        growth = Growth(operations, memory - self.starts[rank].own)
        return growth if memory and self.calls[rank, call].record(growth) else None

    def _overwritten(self, rank: int) -> int:
        """Return to how many bytes of inherited memory a rank has written since it settled.

        Return 0 if the system did not report this number when the rank settled. Raises FrameError
        if the system reported the number then, but does not now.
        """
        first = self.starts[rank].overwritten
        if first is None:
            return 0
        found = self.measures.overwritten(rank)
        if found is None:
            raise FrameError("an operation of a process whose memory cannot be seen")
        return max(0, found - first)

    def _peak(self, rank: int, kept: InCall, with_mapped: bool) -> int:
        """Return the peak of a rank's memory without bytes from files; 0 if it is not known.

        The kernel's peak includes bytes from files. Subtract the bytes from files that the rank had
        when it was first weighed in this call, up to a limit: see ``MAX_MAPPED``. Do not subtract
        bytes from files that came later, because they may have come after the peak.
        """
        found = self.measures.resident(rank, with_mapped)
        if kept.mapped is None:
            allowed = (self.starts[rank].mapped or 0) + MAX_MAPPED
            kept.mapped = min(found.mapped, allowed)
        return found.peak(kept.mapped)

    def at_the_end(
        self, rank: int, call: int, weighs: str, operations: int, in_network: int
    ) -> Growth | None:
        """Measure the memory of a rank that returns from a call: see ``new_most``.

        So the judge gets a number even if the rank communicates nothing. A peak may have come after
        the last operation, so a peak is always measured. The current memory is measured only if the
        rank was not weighed earlier in this call. If it was, the result is None. The result is also
        None if the system never reports memory.

        Raises:
            FrameError: the system reported the rank's memory earlier, and no longer reports it.
        """
        if self.calls[rank, call].is_measured and weighs != PEAK:
            return None
        growth = self.new_most(rank, call, weighs, operations, in_network)
        if growth is None and self.starts[rank].own and not self.measures.memory(rank, True):
            raise FrameError("a result of a process whose memory cannot be seen")
        return growth
