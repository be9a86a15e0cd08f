"""Measures by how much the memory of each rank grows in a call.

The numbers come from the system, which the supervisor asks. What a rank itself says of its memory
does not count.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from random import SystemRandom

from grader.hub.resident import MAX_MAPPED, Resident
from grader.wire.events import Operation
from grader.wire.frames import FrameError
from grader.wire.served import PEAK

# To weigh a rank takes about 2 ms. In a world with more ranks than SMALL, the hub does not weigh a
# rank at every send, because otherwise weighing takes most of a busy machine's time. A send is
# small if the rank has already sent at least SMALL_SEND times as many bytes in this call. The hub
# weighs a rank at PART of its small sends. It draws them, so a rank does not know when to hide its
# memory. Ranks are forked from this process, but they cannot copy the state of SystemRandom.
SMALL, SMALL_SEND, PART = 4, 8, 1 / 3
CHANCE = SystemRandom()


@dataclass
class Weighing:
    """Weighs the ranks of a world.

    ``memory`` returns the bytes of a rank's memory, or 0 if the system does not say. ``resident``
    returns a rank's memory in parts, and its peak. Below, ``weighs`` says what a check asks for: to
    weigh what a rank has, or the most that it ever had (``PEAK``).
    """

    memory: Callable[[int], int]
    resident: Callable[[int], Resident]
    # rank → bytes of its memory before any student code ran
    began_with: dict[int, int] = field(default_factory=dict)
    # rank → its bytes from files at the same time; 0 for a rank that is not weighed exactly
    mapped_first: dict[int, int] = field(default_factory=dict)
    # (rank, call) → the largest growth of the rank's memory so far, in bytes, if it is weighed
    most: dict[tuple[int, int], int] = field(default_factory=dict)
    # (rank, call) → the bytes from files that a rank had when first weighed in the call
    mapped: dict[tuple[int, int], int] = field(default_factory=dict)
    # (rank, call) → the bytes of the rank's operations so far
    sent: Counter[tuple[int, int]] = field(default_factory=Counter)

    def forget_calls(self) -> None:
        """Forget the calls of the last check. How much memory the ranks began with is kept."""
        self.most, self.mapped, self.sent = {}, {}, Counter()

    def before_calls(self, rank: int, is_question: bool, is_alone: bool) -> None:
        """Note how much memory a rank has when a frame arrives before its first call.

        Student code has not run yet. ``is_alone`` says whether the rank will be weighed. If it
        will, it is measured again at each question to the store (``is_question``). At its last
        question, the rank has its arguments, has given back the memory that it does not need, and
        waits: see ``Rank._settle``.
        """
        if rank not in self.began_with or is_alone and is_question:
            found = self.resident(rank) if is_alone else Resident()
            self.began_with[rank] = found.own or self.memory(rank)
            self.mapped_first[rank] = found.mapped

    def is_due(self, operation: Operation, size: int) -> bool:
        """Return whether to weigh a rank at an operation, in a world of ``size`` ranks."""
        key = operation.rank, operation.call
        before = self.sent[key]
        self.sent[key] += operation.bytes
        is_small = operation.kind == "send" and operation.bytes * SMALL_SEND <= before
        return size <= SMALL or not is_small or key not in self.most or CHANCE.random() < PART

    def new_most(self, rank: int, call: int, weighs: str) -> int | None:
        """Return by how many bytes a rank's memory has grown, if this is a new maximum in the call.

        The growth may be negative. Return None if it is no new maximum, or if the system does not
        say how much memory the rank has.
        """
        memory = self._peak(rank, call) if weighs == PEAK else self.memory(rank)
        if not memory:
            return None
        grown = memory - self.began_with[rank]
        if (rank, call) in self.most and grown <= self.most[rank, call]:
            return None
        self.most[rank, call] = grown
        return grown

    def _peak(self, rank: int, call: int) -> int:
        """Return the peak of a rank's memory without bytes from files; 0 if it is not known.

        The kernel's peak includes bytes from files. Subtract the bytes from files that the rank had
        when it was first weighed in this call. Do not subtract bytes from files that came later,
        because they may have come after the peak.
        """
        found = self.resident(rank)
        allowed = self.mapped_first.get(rank, 0) + MAX_MAPPED
        return found.peak(self.mapped.setdefault((rank, call), min(found.mapped, allowed)))

    def at_the_end(self, rank: int, call: int, weighs: str) -> int | None:
        """Weigh a rank that returns from a call.

        So the judge gets a number even if the rank communicates nothing. A peak may have come after
        the last operation, so it is measured in any case. Otherwise the result is None if the rank
        was weighed before in this call. It is also None if the system never reports memory.

        Raises:
            FrameError: the system reported the rank's memory earlier, but does not any more.
        """
        if (rank, call) in self.most and weighs != PEAK:
            return None
        grown = self.new_most(rank, call, weighs)
        if grown is None and self.began_with[rank] and not self.memory(rank):
            raise FrameError("a result of a process whose memory cannot be seen")
        return grown
