"""Defines the events of a rank's trail, and reads them from what a rank sends.

A trail lists, in order, the operations that a rank issued, the groups that it made and the marks
that it passed. A mark is a named point of the rank's program. The judge keeps the trail as plain
data. For a timeline, the ranks report more. On gloo or nccl, the trail then also has the times at
which operations and waits began and ended (``Progress``). On the hub, it has the steps of the
program (``Program``).
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, get_args

from grader.wire.frames import FrameError, is_name, is_whole

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
    """One communication, as it was issued.

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
    def name(self) -> str:
        return NAMES.get(self.kind, self.kind)

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}" if self.file else "a line outside your files"

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
        """Return a description of the operation for students.

        The place comes last, because callers cut the text at its last " at ".
        """
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
        return f"{self.name}{how}{what}{peer} at {self.where}"


@dataclass(frozen=True)
class GroupMade:
    """A call in which a rank makes a process group, as ``dist.new_group`` does.

    ``ranks`` are the global ranks of the group. If ``is_local``, only these ranks make the call
    (``use_local_synchronization``). Otherwise all ranks of the world have to make all such calls in
    the same order. torch numbers the groups, and the ranks of a group find each other by this
    number.
    """

    rank: int
    call: int
    ranks: list
    is_local: bool
    at: int  # monotonic nanoseconds, one clock for all ranks of a machine
    file: str | None
    line: int | None

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.file else "a line outside your files"
        return f"new_group({self.ranks}) at {where}"


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
    *(
        "all_reduce",
        "broadcast",
        "reduce",
        "all_gather",
        "reduce_scatter",
        "gather",
        "scatter",
        "all_to_all",
        "barrier",
    ),
    *("send", "recv"),
}
MAX_COUNTS = 64  # entries of a list; see ``counts`` for longer lists
MAX_NAME = 200  # characters
MARK_SHOWN = 100  # characters; the rest of a mark's name is cut off


Event = Operation | GroupMade | Mark | Progress | Program
# The fields of an operation that a rank sends, each with its name and the types that it may have.
TOLD: list[tuple[str, tuple]] = [
    (field.name, get_args(field.type) or (field.type,))
    for field in fields(Operation)
    if field.name not in ("rank", "call")
]


def read_event(rank: int, meta: dict, size: int) -> Event:
    """Return the event in a rank's frame. ``meta`` is the JSON of the frame.

    ``size`` is the world size. Raises FrameError if the event is not of the agreed form.
    """
    call = meta.get("call")
    if not is_whole(call):
        raise FrameError("an event outside of a call")
    if isinstance(name := meta.get("mark"), str) and is_whole(at := meta.get("at")):
        return Mark(
            rank, call, "".join(c if c.isprintable() else "?" for c in name[:MARK_SHOWN]), at
        )
    if isinstance(progress := meta.get("progress"), dict):
        return _read_progress(rank, call, progress)
    if isinstance(steps := meta.get("steps"), list) and is_whole(at := meta.get("at")):
        return Program(rank, call, tuple(map(_read_step, steps)), at)
    if isinstance(made := meta.get("group"), dict) and is_whole(at := meta.get("at")):
        return _read_group(rank, call, at, made, size)
    if isinstance(content := meta.get("operation"), dict):
        return read_operation(rank, call, content, size)
    raise FrameError("an event of no known kind")


def read_operation(rank: int, call: int, content: dict, size: int) -> Operation:
    """Return the operation that a rank describes in ``content``.

    ``size`` is the world size. Raises FrameError if the operation is not of the agreed form.
    """
    values: dict[str, Any] = {"rank": rank, "call": call}
    for name, types in TOLD:
        values[name] = value = content.get(name)
        if type(value) not in types or not _is_sane(value):
            raise FrameError(f"an operation without a proper {name}")
    if values["kind"] not in KINDS:
        raise FrameError("an operation of no known kind")
    for counts in (
        values["sent"],
        values["received"],
        values["group"],
        values["shape"] or [],
        [values["bytes"]],
    ):
        for count in counts:
            if not is_whole(count) or count < 0:
                raise FrameError("an operation with a count that is not a whole number from 0 on")
    group = values["group"]
    if rank not in group or len(set(group)) < len(group):
        raise FrameError("an operation of a group that lacks its rank, or that lists a rank twice")
    others = [other for other in (values["peer"], values["root"]) if other is not None]
    if not all(0 <= other < size for other in [*group, *others]):
        raise FrameError("an operation with a rank that does not exist")
    return Operation(**values)


def _read_group(rank: int, call: int, at: int, content: dict, size: int) -> GroupMade:
    ranks, is_local, file, line = (content.get(n) for n in ("ranks", "is_local", "file", "line"))
    if not isinstance(ranks, list) or not 0 < len(ranks) <= size or not isinstance(is_local, bool):
        raise FrameError("a group of no known form")
    known = [is_whole(other) and 0 <= other < size for other in ranks]
    if not all(known) or len(set(ranks)) < len(ranks):
        raise FrameError("a group with a rank that does not exist, or that is listed twice")
    if not _is_line(file, line):
        raise FrameError("a group that was made at no known line")
    return GroupMade(rank, call, ranks, is_local, at, file, line)


def _is_line(file: Any, line: Any) -> bool:
    return (file is None or is_name(file, MAX_NAME)) and (line is None or is_whole(line))


def _read_progress(rank: int, call: int, content: dict) -> Progress:
    what, at, of, file, line = (content.get(name) for name in ("what", "at", "of", "file", "line"))
    if _is_line(file, line) and what in PROGRESS and is_whole(at) and (of is None or is_whole(of)):
        return Progress(rank, call, what, at, of, file, line)
    raise FrameError("a malformed report of an operation's progress")


def _read_step(content: Any) -> Step:
    proper = isinstance(content, list) and len(content) == 3 and content[0] in STEPS
    if (
        not proper
        or not is_whole(content[1])
        or content[1] < 0
        or not is_name(content[2], MAX_NAME)
    ):
        raise FrameError("a malformed step of a program")
    return Step(*content)


def _is_sane(value: Any) -> bool:
    """Return whether the value of an operation's field is printable and not too large."""
    if value is None or is_whole(value):
        return True
    if isinstance(value, str):
        return is_name(value, MAX_NAME)
    return isinstance(value, list) and len(value) <= MAX_COUNTS


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
    """Return the sizes of tensors as a rank reports them: a list of at most ``MAX_COUNTS`` numbers.

    If there are more sizes, the last number is the sum of all sizes that remain. So the sum of the
    numbers is always the sum of all sizes.
    """
    return (
        [*sizes[: MAX_COUNTS - 1], sum(sizes[MAX_COUNTS - 1 :])]
        if len(sizes) > MAX_COUNTS
        else list(sizes)
    )


def lane(operation: Operation) -> tuple:
    """Return the lane of a send or a receive. A send and its receive have the same lane.

    A lane is the group, the group's name, the source, the target and the tag. The source is None
    for a receive that takes a message from any rank.
    """
    ends = (
        (operation.rank, operation.peer)
        if operation.kind == "send"
        else (operation.peer, operation.rank)
    )
    return (tuple(operation.group), operation.group_name, *ends, operation.tag)


def groups_made(trail: list, call: int | None = None) -> list[GroupMade]:
    return [e for e in trail if isinstance(e, GroupMade) and (call is None or e.call == call)]


def operations(trail: list, call: int | None = None) -> list[Operation]:
    return [e for e in trail if isinstance(e, Operation) and (call is None or e.call == call)]


def listed(operations: list[Operation], most: int = 6) -> str:
    """Return the names and the bytes of at most ``most`` operations, for a message."""
    text = ", ".join(f"{o.name} of {o.bytes} bytes" for o in operations[:most])
    return f"{text}, …" if len(operations) > most else text
