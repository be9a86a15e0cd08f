"""Defines the events of a rank's trail.

A trail lists, in order, the operations that a rank issued, the groups that it made and the marks
that it passed. A mark is a named point of the rank's program. The judge keeps the trail as plain
data, which ``event_reader`` reads from the rank's frames. For a timeline, the ranks report more. On
gloo or nccl, the trail then also has the times at which operations and waits began and ended
(``Progress``). On the hub, the trail then also has the steps of the program (``Program``).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

NAMES = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "recv": "receive",
}
EMPTY_BYTES = 8  # a message without entries counts as 8 bytes, because its tag carries information


@dataclass(frozen=True)
class Operation:
    """One communication, as one rank issued it.

    Ranks, peers and roots are global ranks. ``sent`` and ``received`` hold the number of elements
    of each tensor. In an all-to-all they have an entry for each rank of the group: how many
    elements go to this rank, and how many are expected from it. ``bytes`` is the size of the
    tensors that are sent. If none are sent, it is the size of the tensors that are received.
    """

    rank: int
    call: int
    kind: str
    at: int  # monotonic nanoseconds, one clock for all ranks of a machine
    dtype: str | None
    shape: list | None
    sent: list
    received: list
    bytes: int
    reduction: str | None
    peer: int | None
    root: int | None
    tag: int
    group: list
    group_name: str
    file: str | None
    line: int | None

    @property
    def key(self) -> tuple[int, int]:
        """Return (rank, at), which identifies the operation among all operations of a world."""
        return self.rank, self.at

    @property
    def name(self) -> str:
        return NAMES.get(self.kind, self.kind)

    @property
    def where(self) -> str:
        return _place(self.file, self.line)

    @property
    def own_line(self) -> str:
        """Return the line in the student's files that issued the operation, or ""."""
        return self.where if self.file else ""

    @property
    def elements(self) -> int:
        """Return the number of elements, to compare this operation with operations of other ranks.

        All operations of one collective must have the same number, except in an all-to-all. A send
        and its receive must have the same number, too.
        """
        if self.kind == "all_gather":
            return sum(self.received) or sum(self.sent) * len(self.group)
        if self.kind == "gather":
            return sum(self.sent)
        if self.kind == "scatter":
            return sum(self.received)
        return sum(self.sent) or sum(self.received)

    @property
    def traffic(self) -> float:
        """Return how many bytes a rank sends in the best algorithm for the operation.

        For most kinds of operations, the number is an average over the ranks. The factors are those
        of NVIDIA's nccl-tests (doc/PERFORMANCE.md). An all-reduce costs as much as a reduce-scatter
        and an all-gather together [Patarasuk and Yuan, 2009].
        """
        n = len(self.group)
        if self.kind == "send":
            return self.bytes or EMPTY_BYTES
        if self.kind in ("recv", "barrier"):
            return 0
        if self.kind == "all_gather":
            return self.bytes * (n - 1)
        if self.kind == "gather":
            return self.bytes * (n - 1) / n
        if self.kind == "scatter":
            return sum(self.received) * self.itemsize * (n - 1) / n
        if self.kind == "all_to_all" and len(self.sent) == n:
            return self.bytes - self.sent[self.group.index(self.rank)] * self.itemsize
        return self.bytes * (n - 1) / n * (2 if self.kind == "all_reduce" else 1)

    @property
    def itemsize(self) -> float:
        return self.bytes / max(sum(self.sent) or sum(self.received), 1)

    def __str__(self) -> str:
        return f"{self.description} at {self.where}"

    @property
    def description(self) -> str:
        """Return a description of the operation for students, without the line that issued it."""
        how, peer = f" ({self.reduction})" if self.reduction else "", ""
        if self.kind == "send":
            peer = f" to rank {self.peer}"
        elif self.kind == "recv":
            peer = f" from {'any rank' if self.peer is None else f'rank {self.peer}'}"
        elif self.root is not None:
            peer = f" with root {self.root}"
        if self.kind in ("send", "recv") and self.tag:
            peer += f" with tag {self.tag}"
        # The root of a scatter sends a block to each rank; a rank receives one block.
        is_scatter = self.kind == "scatter"
        count = str(self.elements if is_scatter else sum(self.sent) or sum(self.received))
        if self.kind == "reduce_scatter" and len(set(self.sent)) > 1:  # blocks that are not equal
            count = f"({' + '.join(map(str, self.sent))})"
        what = "" if self.kind == "barrier" else f" of {count} × {self.dtype}"
        return f"{self.name}{how}{what}{peer}"


@dataclass(frozen=True)
class GroupMade:
    """A call in which a rank makes a process group, as ``dist.new_group`` does.

    ``ranks`` are the global ranks of the group. If ``is_local`` is True, only these ranks make the
    call (``use_local_synchronization``). Otherwise all ranks of the world have to make all such
    calls in the same order. torch numbers the groups, and the ranks of a group find each other by
    this number.
    """

    rank: int
    call: int
    ranks: list
    is_local: bool
    at: int  # monotonic nanoseconds, one clock for all ranks of a machine
    file: str | None
    line: int | None

    def __str__(self) -> str:
        return f"new_group({self.ranks}) at {_place(self.file, self.line)}"


def _place(file: str | None, line: int | None) -> str:
    return f"{file}:{line}" if file else "a line outside your files"


@dataclass(frozen=True)
class Mark:
    """A named point of a rank's program, and the time at which the rank passed it."""

    rank: int
    call: int
    name: str
    at: int


@dataclass(frozen=True)
class Progress:
    """A report that an operation has made progress.

    ``what`` is one of ``PROGRESS``:

    - started: the function that starts the operation has returned;
    - wait began: the rank has begun to wait for the operation;
    - wait ended: this wait has ended;
    - completed: the backend has completed the operation.
    """

    rank: int
    call: int
    what: str
    at: int
    # the time at which the operation was issued, which identifies the operation; None if this time
    # is not known
    of: int | None
    file: str | None
    line: int | None


@dataclass(frozen=True)
class Step:
    """One step of a rank's program.

    ``kind`` is one of ``STEPS``:

    - issues: the rank issued its operation ``number``;
    - awaits: the rank began to wait for its operation ``number``, in the line ``text`` if the line
      is known;
    - multiplies: the rank spent ``number`` floating-point operations on products of matrices;
    - passes: the rank passed the mark ``text``.

    A rank's operations are numbered in the order in which the rank issued them in this call.
    """

    kind: str
    number: int = 0
    text: str = ""


STEPS = ISSUES, AWAITS, MULTIPLIES, PASSES = "issues", "awaits", "multiplies", "passes"


@dataclass(frozen=True)
class Program:
    """Some steps of a rank's program, in order. A replay on a modelled cluster runs these steps.

    Only the rank itself reports these steps, so they are never evidence.
    """

    rank: int
    call: int
    steps: tuple[Step, ...]
    at: int


STARTED = "started"
WAIT_BEGAN = "wait began"
WAIT_ENDED = "wait ended"
COMPLETED = "completed"
PROGRESS = (STARTED, WAIT_BEGAN, WAIT_ENDED, COMPLETED)

KINDS = {
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "gather",
    "scatter",
    "all_to_all",
    "barrier",
    "send",
    "recv",
}
MAX_COUNTS = 64  # entries of a list; see ``counts`` for longer lists
MAX_NAME = 200  # characters

Event = Operation | GroupMade | Mark | Progress | Program


def weight(event: Event) -> int:
    """Return about how many small events take as much memory as this event; at least 1.

    Most events of honest ranks weigh 1. A ``Program`` weighs 1, and 1 more for each step.
    """
    if isinstance(event, Program):
        return 1 + len(event.steps)
    if isinstance(event, GroupMade):
        return 1 + len(event.ranks) // 32
    if not isinstance(event, Operation):
        return 1
    counts = len(event.sent) + len(event.received) + len(event.group) + len(event.shape or ())
    texts = (event.dtype, event.reduction, event.group_name, event.file)
    return 1 + (counts + sum(len(text or "") for text in texts) // 8) // 32


def counts(sizes: Sequence[int]) -> list[int]:
    """Shorten a list of tensor sizes to at most ``MAX_COUNTS`` numbers, for a rank's report.

    If there are more sizes, the last number is the sum of all sizes that remain. So the sum of the
    numbers is always the sum of all sizes.
    """
    if len(sizes) <= MAX_COUNTS:
        return list(sizes)
    return [*sizes[: MAX_COUNTS - 1], sum(sizes[MAX_COUNTS - 1 :])]


def groups_made(trail: list, call: int | None = None) -> list[GroupMade]:
    return [e for e in trail if isinstance(e, GroupMade) and (call is None or e.call == call)]


def operations(trail: list, call: int | None = None) -> list[Operation]:
    return [e for e in trail if isinstance(e, Operation) and (call is None or e.call == call)]


def operations_by_key(trails: Sequence[list]) -> dict[tuple[int, int], Operation]:
    return {operation.key: operation for trail in trails for operation in operations(trail)}


def listed(operations: list[Operation], most: int = 6) -> str:
    """Return the names and the bytes of at most ``most`` operations, for a message.

    If there are more operations, say how many there are of each kind.
    """
    each = {"all_gather": " from each rank", "gather": " from each rank"}
    text = ", ".join(
        f"{o.name} of {o.bytes} bytes{each.get(o.kind, '')}" for o in operations[:most]
    )
    if len(operations) <= most:
        return text
    kinds = Counter(o.name for o in operations)
    return f"{text}, …; in all: {', '.join(f'{n} × {name}' for name, n in kinds.items())}"
