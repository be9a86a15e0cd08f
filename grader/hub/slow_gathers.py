"""The hub can withhold the result of an all-gather until the rank has done something else.

``report.Call.slow_gathers`` asks for this rule. Under this rule, a rank gets the result of an
all-gather only after one of the judge's functions (see ``wire.callbacks``) has ended. If the rank
waits for the result before that, all ranks come to a standstill. The hub then gives the result
anyway, and tells the judge. So the judge learns, without a clock, whether a rank computes while it
gathers.

If a rank has a thread that the hub does not know, the hub never finds a standstill. But the judge
sees that the ranks are idle, and tells the hub. The hub then gives results that threads wait for.
In both cases each waiting rank gets one result, the earliest that it waits for, and the hub tells
the judge. The rank can then go on and compute, while one of its helper threads waits for the next
result.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from grader.hub.matching import Posted


@dataclass
class SlowGathers:
    """Withholds the results of all-gathers that have to wait. A rank is in one call at a time."""

    # rank → how many of the judge's functions have ended in this call
    uses: Counter[int] = field(default_factory=Counter)
    issued: Counter[int] = field(default_factory=Counter)  # rank → its all-gathers in this call
    # (rank, number) of an all-gather that is not answered yet → the values of ``uses`` and
    # ``issued`` for the rank when it issued this all-gather
    before: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    withheld: list[tuple[Posted, bytes]] = field(default_factory=list)
    # rank → the numbers of its all-gathers in ``before`` that a thread waits for, or asks for again
    # and again
    awaited: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))

    def note(self, posted: Posted) -> None:
        """Record an operation that a rank has issued in a call with this rule."""
        if posted.operation.kind == "all_gather":
            rank = posted.rank
            self.before[rank, posted.number] = self.uses[rank], self.issued[rank]
            self.issued[rank] += 1

    def withhold_until_use(self, posted: Posted, blob: bytes) -> bool:
        """Withhold the result of an operation that has to wait. Return whether it is withheld."""
        key = posted.rank, posted.number
        if key not in self.before:
            return False
        if self.before[key][0] < self.uses[posted.rank]:
            self._forget(*key)
            return False
        self.withheld.append((posted, blob))
        return True

    def on_await(self, rank: int, number: int) -> None:
        """Record that a thread of a rank waits for an operation.

        Do nothing if the operation is not an all-gather that ``before`` lists.
        """
        if (rank, number) in self.before:
            self.awaited[rank].add(number)

    def on_use(self, rank: int) -> list[tuple[Posted, bytes]]:
        """Record that a function of the judge has ended; return the rank's withheld results."""
        self.uses[rank] += 1
        return self._taken([own for own in self.withheld if own[0].rank == rank])

    def on_end(self, rank: int) -> list[tuple[Posted, bytes]]:
        """Forget a rank's call, which has ended. Return its withheld results."""
        found = self.on_use(rank)
        self.before = {key: value for key, value in self.before.items() if key[0] != rank}
        self.awaited.pop(rank, None)
        del self.uses[rank], self.issued[rank]
        return found

    def lift(self, waits: Mapping[int, Collection]) -> list[tuple[Posted, bytes, int]]:
        """Stop withholding the earliest result of each waiting rank; return these results.

        Call this when no rank goes on by itself. ``waits`` says what each rank waits for. A result
        that no rank waits for stays withheld. Each result is a tuple (operation, bytes, place). The
        place is the number of all-gathers that the rank had issued earlier in its call.
        """
        earliest: dict[int, tuple[int, tuple[Posted, bytes]]] = {}
        for own in self.withheld:
            rank, number = own[0].rank, own[0].number
            place = self.before[rank, number][1]
            if number in waits.get(rank, ()) and place < earliest.get(rank, (place + 1,))[0]:
                earliest[rank] = place, own
        self._taken([own for _, own in earliest.values()])
        return [(*own, place) for place, own in earliest.values()]

    def _taken(self, given: list[tuple[Posted, bytes]]) -> list[tuple[Posted, bytes]]:
        for posted, blob in given:
            self.withheld.remove((posted, blob))
            self._forget(posted.rank, posted.number)
        return given

    def _forget(self, rank: int, number: int) -> None:
        del self.before[rank, number]
        self.awaited[rank].discard(number)
