"""Which operations of different ranks meet, and what each of them gets. Runs in the hub.

Collectives of a group meet in the order in which each rank has issued them; a receive gets the
earliest message that it may take. In strict order an operation takes part only when those before it
have ended: see ``strict``.
"""

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass

from grader.hub.in_step import Steps
from grader.hub.strict import TAG, StrictOrder
from grader.wire import combine, frames
from grader.wire.agreement import difference
from grader.wire.events import Operation

Lane = tuple  # what operations have in common that may meet


@dataclass(eq=False)
class Posted:
    """An operation that a rank has started, and that is not answered yet."""

    number: int
    operation: Operation
    pieces: list[list[int]]  # of an all-to-all: elements to each rank, and from each
    due: int  # bytes that it sends
    blob: bytes = b""  # these, once they are here
    batch: int | None = None  # which one it was started in
    position: int = 0  # of a collective: how many its rank has issued in this group, with it

    @property
    def rank(self) -> int:
        return self.operation.rank

    @property
    def is_here(self) -> bool:
        return len(self.blob) == self.due


class Matching:
    """Calls ``answer(posted, bytes, source=…)`` for each operation that is complete."""

    def __init__(
        self, size: int, steps: Steps, answer: Callable[..., None], is_strict: bool = False
    ) -> None:
        self.size, self.steps, self.tell = size, steps, answer
        self.order = StrictOrder() if is_strict else None
        self.beginning: deque[Posted] = deque()  # what the end of others has let begin
        self.counts: dict[tuple, int] = defaultdict(int)  # (rank, group) → its collectives so far
        self.collectives: dict[tuple, dict[int, Posted]] = defaultdict(dict)
        self.sends: dict[Lane, deque[Posted]] = defaultdict(deque)  # (group, target, tag)
        self.receives: dict[Lane, deque[Posted]] = defaultdict(deque)

    def post(self, posted: Posted) -> None:
        """Take an operation that a rank has issued."""
        if self.order is None or self.order.begins(posted):
            self._begin(posted)
            self._begin_others()

    def _begin_others(self) -> None:
        while self.beginning:
            self._begin(self.beginning.popleft())

    def answer(self, posted: Posted, blob: bytes, **more: int) -> None:
        """Answer an operation, which ends it."""
        if self.order:
            self.beginning += self.order.ends(posted)
        self.tell(posted, blob, **more)

    def _begin(self, posted: Posted) -> None:
        """Put an operation where others can meet it."""
        operation, lane = posted.operation, self._lane(posted.operation)
        if operation.kind == "send":
            self.sends[lane].append(posted)
            if self.steps.note_sent(operation):
                for other in [other for other in self.receives if other[2] == operation.rank]:
                    self._match(other)
        elif operation.kind == "recv":
            self.receives[lane].append(posted)
        else:
            self.counts[posted.rank, lane] += 1
            posted.position = self.counts[posted.rank, lane]
            self.collectives[lane, posted.position][posted.rank] = posted
        self._meet(posted)

    def meet(self, posted: Posted) -> None:
        """Answer what the bytes of an operation complete."""
        self._meet(posted)
        self._begin_others()

    def _meet(self, posted: Posted) -> None:
        lane = self._lane(posted.operation)
        if posted.operation.kind in ("send", "recv"):
            return self._match(lane)
        together = self.collectives[lane, posted.position]
        if len(together) == len(posted.operation.group) and all(
            other.is_here for other in together.values()
        ):
            del self.collectives[lane, posted.position]
            self._collect([together[rank] for rank in posted.operation.group])

    def match_all(self) -> None:
        """Look at all receives again, after a rule has changed."""
        for lane in list(self.receives):
            self._match(lane)
        self._begin_others()

    def held_back(self) -> dict:
        """Return what the judge is told of operations that only strict order holds back."""
        return {"behind": self.order.behind()} if self.order else {}

    def _match(self, lane: Lane) -> None:
        """Give each receive, in order, the earliest message that it may take."""
        sends, waiting = self.sends[lane], deque[Posted]()
        for receive in self.receives[lane]:
            peer = receive.operation.peer
            send = next((s for s in sends if peer in (None, s.rank)), None)
            if send is None or not send.is_here or not _fits(send, receive):
                waiting.append(receive)
                continue
            if self.steps.withholds(receive.operation, send.rank, self.size):
                waiting.append(receive)
                continue
            self.steps.note_received(receive.operation, send.rank)
            sends.remove(send)
            self.answer(send, b"")
            self.answer(receive, send.blob, source=receive.operation.group.index(send.rank))
        self.receives[lane] = waiting

    def _lane(self, operation: Operation) -> Lane:
        """Return what operations have in common that may meet."""
        group, tag = (tuple(operation.group), operation.group_name), (
            TAG if self.order else operation.tag
        )
        if operation.kind == "send":
            return (*group, operation.peer, tag)
        if operation.kind == "recv":
            return (*group, operation.rank, tag)
        return group

    def _collect(self, together: list[Posted]) -> None:
        """Answer a collective that all its ranks have joined.

        Where they disagree, nobody gets an answer.
        """
        if difference([posted.operation for posted in together]) is not None:
            return
        results = collect(together)
        if results is not None:
            for posted, result in zip(together, results):
                self.answer(posted, result)


def _fits(send: Posted, receive: Posted) -> bool:
    """Return whether a message is what a receive expects."""
    return (send.operation.elements, send.operation.dtype) == (
        receive.operation.elements,
        receive.operation.dtype,
    )


def collect(together: list[Posted]) -> list[bytes] | None:
    """Return what each rank of a collective gets, in the order of the group; None if what they have
    sent does not fit together.
    """
    results = _results(together)
    if results is None or any(
        not _has_room(posted, result) for posted, result in zip(together, results)
    ):
        return None
    return results


def _has_room(posted: Posted, result: bytes) -> bool:
    """Return whether these are the bytes that a rank has told of as what it receives."""
    operation = posted.operation
    if operation.kind == "barrier":
        return True
    return len(result) in (0, sum(operation.received) * combine.ITEMSIZES[_dtype(operation)])


def _dtype(operation: Operation) -> str:
    assert operation.dtype is not None  # only a barrier may have none, see ``check``
    return operation.dtype


def _results(together: list[Posted]) -> list[bytes] | None:
    first, n = together[0].operation, len(together)
    blobs = [posted.blob for posted in together]
    root = first.group.index(first.root) if first.root in first.group else 0
    if first.kind == "barrier":
        return [b""] * n
    if first.kind == "broadcast":
        return [blobs[root]] * n
    if first.kind == "scatter":
        return combine.cut(blobs[root], n)
    if first.kind == "all_to_all":
        return _exchange(together)
    if len({len(blob) for blob in blobs}) > 1:
        return None
    if first.kind in ("all_gather", "gather"):
        whole = b"".join(blobs)
        return [whole if first.kind == "all_gather" or rank == root else b"" for rank in range(n)]
    dtype, reduction = _dtype(first), first.reduction
    if reduction is None or not combine.can_reduce(dtype, reduction):
        return None
    total = combine.reduced(blobs, dtype, reduction)
    if first.kind == "all_reduce":
        return [total] * n
    if first.kind == "reduce_scatter":
        return combine.cut(total, n)
    # On the others a reduce leaves what no one may rely on: with gloo partial sums, here no
    # numbers.
    return [total if rank == root else combine.unfilled(total, dtype) for rank in range(n)]


def _exchange(together: list[Posted]) -> list[bytes] | None:
    n = len(together)
    itemsize = combine.ITEMSIZES[_dtype(together[0].operation)]
    sent = [posted.pieces[0] for posted in together]
    if any(sent[i][j] != together[j].pieces[1][i] for i in range(n) for j in range(n)):
        return None
    parts = [combine.cut_by(posted.blob, posted.pieces[0], itemsize) for posted in together]
    return [b"".join(parts[i][j] for i in range(n)) for j in range(n)]


def bring(posted: Posted, blob: bytes) -> None:
    """Give an operation its bytes. Raises FrameError where it has told of more, or of fewer."""
    if len(blob) != posted.due:
        raise frames.FrameError("an operation that does not bring the bytes which it tells of")
    posted.blob = blob


def bytes_due(operation: Operation) -> int:
    """Return how many bytes a rank sends for its part in an operation."""
    if operation.kind in ("broadcast", "scatter"):
        return operation.bytes if operation.root == operation.rank else 0
    return 0 if operation.kind in ("recv", "barrier") else operation.bytes


def check(posted: Posted) -> None:
    """Raise FrameError if an operation's counts are not those of the tensors that it names."""
    operation, pieces = posted.operation, posted.pieces
    n = len(operation.group) if operation.kind == "all_to_all" else 0
    proper = (
        isinstance(pieces, list)
        and len(pieces) == 2
        and all(isinstance(way, list) and len(way) == n for way in pieces)
        and all(
            frames.is_whole(count) and 0 <= count < frames.MAX_BLOB
            for way in pieces
            for count in way
        )
    )
    if not proper:
        raise frames.FrameError("an operation without proper pieces")
    others = [other for other in (operation.peer, operation.root) if other is not None]
    if not set(others) <= set(operation.group):
        raise frames.FrameError("an operation with a rank that is not in its group")
    itemsize = combine.ITEMSIZES.get(operation.dtype or "", 0)
    if operation.kind == "all_to_all" and operation.bytes != sum(pieces[0]) * itemsize:
        raise frames.FrameError("an operation without proper pieces")
    if operation.kind != "barrier" and (not itemsize or operation.bytes % itemsize):
        raise frames.FrameError("an operation without a proper dtype")
    if operation.bytes != sum(operation.sent or operation.received) * itemsize:
        raise frames.FrameError("an operation with other bytes than its elements have")
