"""Measures by how much the memory of each rank grows in a call.

To *weigh* a rank means to measure its memory. The numbers come from the system, which the
supervisor asks. A rank's own report of its memory does not count. A rank must not know when it is
weighed, because it could hide its memory at these times. So some of the times are drawn at random.
Ranks are forked from this process, but they cannot predict SystemRandom: it has no state that a
fork could copy.
"""

from collections import Counter
from dataclasses import dataclass, field
from random import SystemRandom
from time import monotonic

from grader.hub.process_usage import MAX_MAPPED, MemoryUsage, UsageSource
from grader.wire.callbacks import PEAK, Growth
from grader.wire.events import Operation
from grader.wire.frames import FrameError

# To weigh a rank takes about 2 ms. In a world with more ranks than SMALL, the hub weighs a rank at
# only PART of its small sends. Otherwise weighing takes nearly half of the hub's time. A send is
# small if the rank's earlier sends in this call together have at least SMALL_SEND times as many
# bytes.
SMALL, SMALL_SEND, PART = 4, 8, 1 / 3
# To measure overwritten memory takes about 5 ms. The hub does so when it weighs a rank for the
# first time in a call, and later with this probability. A look between operations counts as the
# first time.
OVERWRITTEN_PART = 1 / 8
# To read which files and shared memory a rank maps takes much of the remaining time. The hub does
# so the first ``ALWAYS_MAPPED`` times that it weighs a rank in a call, and later with probability
# ``MAPPED_PART``.
ALWAYS_MAPPED, MAPPED_PART = 8, 1 / 4
# The hub also weighs a rank when it holds at least this many more bytes for the rank than before.
NETWORK_STEP = 1 << 18
# If a check asks for the peak, the hub also weighs all ranks about every ``SECONDS_BETWEEN``.
# This takes 0.1 ms for each rank, because files and other processes are not counted.
SECONDS_BETWEEN = 0.006
CHANCE = SystemRandom()


@dataclass
class Weighing:
    """Weighs the ranks of a world, that is, measures their memory.

    Below, ``weighs`` says which memory of a rank a check asks for: the memory that the rank has now
    (``SETTLED``), or the most that it ever had (``PEAK``).
    """

    measures: UsageSource
    # rank → bytes of its memory before any student code ran
    began_with: dict[int, int] = field(default_factory=dict)
    # rank → its bytes from files at the same time; 0 if the rank has not settled
    mapped_first: dict[int, int] = field(default_factory=dict)
    # rank → the result of ``overwritten`` at the same time; None if the rank has not settled
    overwritten_first: dict[int, int | None] = field(default_factory=dict)
    # (rank, call) → the largest measured growth of the rank's own memory, and the largest growth of
    # all memory together, in bytes; no entry before the first measurement
    most: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    # (rank, call) → how often the rank was weighed in the call, except between its operations
    times: Counter[tuple[int, int]] = field(default_factory=Counter)
    # (rank, call) → the bytes from files that a rank had when first weighed in the call, up to a
    # limit: see ``MAX_MAPPED``
    mapped: dict[tuple[int, int], int] = field(default_factory=dict)
    # (rank, call) → the bytes of all sends that the rank has issued
    sent: Counter[tuple[int, int]] = field(default_factory=Counter)
    # (rank, call) → how many bytes ``record_if_much`` recorded last
    held_bytes: Counter[tuple[int, int]] = field(default_factory=Counter)
    next_at: float = 0.0  # the time of the next look between operations

    def seconds_to_look(self) -> float:
        """Return in how many seconds to look between operations; 0 if it is time now."""
        return max(0.0, self.next_at - monotonic())

    def draw_next_look(self) -> None:
        """Draw the time of the next look between operations."""
        self.next_at = monotonic() + CHANCE.uniform(0, 2 * SECONDS_BETWEEN)

    def record_if_much(self, rank: int, call: int, in_network: int) -> bool:
        """If the hub holds many bytes for a rank, record them and return True; else return False.

        They are many if they exceed the last recorded number of this call by at least
        ``NETWORK_STEP``. Then the caller has to weigh the rank.
        """
        is_much = in_network >= self.held_bytes[rank, call] + NETWORK_STEP
        if is_much:
            self.held_bytes[rank, call] = in_network
        return is_much

    def forget_calls(self) -> None:
        """Forget the calls of the previous check. Keep the sizes that the ranks began with."""
        self.most, self.mapped = {}, {}
        self.sent, self.held_bytes, self.times = Counter(), Counter(), Counter()

    def before_calls(self, rank: int, has_settled: bool) -> None:
        """Note how much memory a rank has when a frame arrives before its first call.

        Student code has not run yet. If the rank will be weighed, it reads its arguments, frees
        memory that it does not need, and sends one more frame: see ``Rank._settle``. For this frame
        ``has_settled`` is True. The rank then waits, and is measured once more.
        """
        if rank not in self.began_with or has_settled:
            found = self.measures.resident(rank, True) if has_settled else MemoryUsage()
            self.began_with[rank] = found.own or self.measures.memory(rank, True)
            self.mapped_first[rank] = found.mapped
            self.overwritten_first[rank] = self.measures.overwritten(rank) if has_settled else None

    def decide_at(self, operation: Operation, size: int) -> bool:
        """Return whether to weigh a rank at an operation, in a world of ``size`` ranks.

        Call this only one time for each operation, because this method counts the bytes of sends,
        and may draw a random number.
        """
        if size <= SMALL or operation.kind != "send":
            return True
        key = operation.rank, operation.call
        is_small = operation.bytes * SMALL_SEND <= self.sent[key]
        self.sent[key] += operation.bytes
        return not is_small or key not in self.most or CHANCE.random() < PART

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
        self.times[rank, call] += 1
        with_mapped = self.times[rank, call] <= ALWAYS_MAPPED or CHANCE.random() < MAPPED_PART
        weigh = self._peak if weighs == PEAK else self._present
        memory = weigh(rank, call, with_mapped)
        if not memory:
            return None
        is_drawn = (rank, call) not in self.most or CHANCE.random() < OVERWRITTEN_PART
        overwritten = self._overwritten(rank) if is_drawn else 0
        growth = Growth(operations, memory - self.began_with[rank], overwritten, in_network)
        return self._if_new(rank, call, growth)

    def between(self, rank: int, call: int, operations: int) -> Growth | None:
        """Measure a rank's present memory between two of its operations: see ``new_most``."""
        memory = self.measures.process_memory(rank)
        growth = Growth(operations, memory - self.began_with[rank])
        return self._if_new(rank, call, growth) if memory else None

    def _if_new(self, rank: int, call: int, growth: Growth) -> Growth | None:
        """Return the growth if it is a new maximum in the call, and None otherwise."""
        together = growth.own + growth.overwritten + growth.in_network
        most, most_together = self.most.get((rank, call), (growth.own - 1, together - 1))
        self.most[rank, call] = max(most, growth.own), max(most_together, together)
        return growth if growth.own > most or together > most_together else None

    def _overwritten(self, rank: int) -> int:
        """Return to how many bytes of inherited memory a rank has written since it settled.

        Return 0 if the system did not report this number when the rank settled. Raises FrameError
        if the system reported the number then, but does not now.
        """
        first = self.overwritten_first.get(rank)
        if first is None:
            return 0
        found = self.measures.overwritten(rank)
        if found is None:
            raise FrameError("an operation of a process whose memory cannot be seen")
        return max(0, found - first)

    def _present(self, rank: int, call: int, with_mapped: bool) -> int:
        return self.measures.memory(rank, with_mapped)

    def _peak(self, rank: int, call: int, with_mapped: bool) -> int:
        """Return the peak of a rank's memory without bytes from files; 0 if it is not known.

        The kernel's peak includes bytes from files. Subtract the bytes from files that the rank had
        when it was first weighed in this call, up to a limit: see ``MAX_MAPPED``. Do not subtract
        bytes from files that came later, because they may have come after the peak.
        """
        found = self.measures.resident(rank, with_mapped)
        allowed = self.mapped_first.get(rank, 0) + MAX_MAPPED
        return found.peak(self.mapped.setdefault((rank, call), min(found.mapped, allowed)))

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
        if (rank, call) in self.most and weighs != PEAK:
            return None
        growth = self.new_most(rank, call, weighs, operations, in_network)
        if growth is None and self.began_with[rank] and not self.measures.memory(rank, True):
            raise FrameError("a result of a process whose memory cannot be seen")
        return growth
