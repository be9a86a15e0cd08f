"""Decides which operations of different ranks match, and which data each rank receives.

The collectives of a group match in the order in which each rank has issued them. A receive gets the
earliest message that it may receive. In strict order, an operation begins only when the earlier
operations of its rank and group have ended: see ``strict``.
"""

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from grader.hub.in_step import InStep
from grader.hub.strict import TAG, StrictOrder
from grader.wire import combine, frames
from grader.wire.agreement import difference
from grader.wire.events import Operation
from grader.wire.lanes import Destination, destination_of

# The hub tells the judge which messages were taken by receives that name no sender, but only the
# latest messages, up to this number. The judge guesses which receives took the earlier messages.
MAX_PAIRS = 500

GroupKey = tuple[tuple[int, ...], str]  # the ranks of a group, and the group's name


@dataclass(eq=False)
class Posted:
    """An operation that a rank has started and that is not answered yet."""

    number: int
    operation: Operation
    # for an all-to-all, two lists: how many elements it sends to each rank, and how many it
    # receives from each rank; else two empty lists
    pieces: list[list[int]]
    due: int  # the number of bytes that it sends
    blob: bytes = b""  # the bytes that it sends; empty until they have reached the hub
    batch: int | None = None  # the number of the batch that it was started in
    # for a collective: how many collectives its rank has issued in this group, this one included;
    # for a send: how many sends of all ranks have begun before
    position: int = 0

    @property
    def rank(self) -> int:
        return self.operation.rank

    @property
    def is_here(self) -> bool:
        return len(self.blob) == self.due


class Matching:
    """Matches the operations of a world, and answers each operation when it is complete.

    To answer an operation, this object calls ``answer(posted, bytes)``. For a receive it adds
    ``source=…``, the sender's rank in the group.
    """

    def __init__(
        self, size: int, in_step: InStep, answer: Callable[..., None], is_strict: bool = False
    ) -> None:
        self.size, self.in_step, self.answer = size, in_step, answer
        self.order = StrictOrder() if is_strict else None
        # Operations that may begin because the operations before them have ended. The queue avoids
        # a deep recursion for a long chain of such operations.
        self.beginning: deque[Posted] = deque()
        # (rank, group) → how many collectives the rank has issued in this group
        self.counts: dict[tuple[int, GroupKey], int] = defaultdict(int)
        self.begun = itertools.count()
        # (group, position) → rank → the rank's operation
        self.collectives: dict[tuple[GroupKey, int], dict[int, Posted]] = defaultdict(dict)
        # destination → sender → its messages that no receive has taken
        self.sends: dict[Destination, dict[int, deque[Posted]]] = defaultdict(
            lambda: defaultdict(deque)
        )
        self.receives: dict[Destination, deque[Posted]] = defaultdict(deque)
        # [rank, time] of each operation that stays unanswered although all ranks have joined its
        # collective. The operations of such a collective do not fit together. Their bytes are not
        # kept.
        self.unanswered: list[list[int]] = []
        # The ``_pair`` of each receive that names no sender and has got a message. The judge knows
        # the other pairs, because it counts the messages between two ranks.
        self.taken_from_any: deque[list[int]] = deque(maxlen=MAX_PAIRS)

    def post(self, posted: Posted) -> None:
        """Take an operation that a rank has issued, and answer all operations that it completes."""
        if self.order is None or self.order.enqueue(posted):
            self._begin(posted)
            self._begin_others()

    def _begin_others(self) -> None:
        while self.beginning:
            self._begin(self.beginning.popleft())

    def _end(self, posted: Posted, blob: bytes, **more: int) -> None:
        """End an operation by answering it.

        If there is a strict order, operations that waited for this one may begin now.
        """
        if self.order:
            self.beginning += self.order.dequeue(posted)
        self.answer(posted, blob, **more)

    def _begin(self, posted: Posted) -> None:
        """Make an operation available to the operations of other ranks, and match it."""
        operation = posted.operation
        if operation.kind == "send":
            posted.position = next(self.begun)
            self.sends[self._destination(operation)][posted.rank].append(posted)
            # The rank has passed a message on. So now it can get a message that was withheld.
            if self.in_step.note_sent(operation):
                for other in [other for other in self.receives if other.target == operation.rank]:
                    self._match(other)
        elif operation.kind == "recv":
            self.receives[self._destination(operation)].append(posted)
        else:
            group = _group_key(operation)
            self.counts[posted.rank, group] += 1
            posted.position = self.counts[posted.rank, group]
            self.collectives[group, posted.position][posted.rank] = posted
        self._complete_if_ready(posted)

    def on_bytes(self, posted: Posted) -> None:
        """Answer the operations that are complete now that the bytes of ``posted`` are here."""
        self._complete_if_ready(posted)
        self._begin_others()

    def _complete_if_ready(self, posted: Posted) -> None:
        """Answer the operations that match ``posted``, if all that they need is here."""
        operation = posted.operation
        if operation.kind in ("send", "recv"):
            return self._match(self._destination(operation))
        key = _group_key(operation), posted.position
        together = self.collectives[key]
        if len(together) == len(operation.group) and all(
            other.is_here for other in together.values()
        ):
            del self.collectives[key]
            self._answer_collective([together[rank] for rank in operation.group])

    def match_all(self) -> None:
        """Match all receives again, after a rule has changed."""
        for destination in list(self.receives):
            self._match(destination)
        self._begin_others()

    def report(self) -> dict:
        """Return facts that the judge cannot find out from the operations alone.

        In strict order, ``"behind"`` lists operations that wait for an earlier operation of their
        rank: see ``StrictOrder.behind``. ``"unanswered"`` lists [rank, time] of each operation of
        the collectives whose operations do not fit together. ``"pairs"`` lists sends and their
        receives (see ``_pair``), in two cases: the receive names no sender, or the message does not
        fit its receive. If one of the last two lists is empty, its key is missing.
        """
        told = {"behind": self.order.behind()} if self.order else {}
        if self.unanswered:
            told["unanswered"] = list(self.unanswered)
        if pairs := [*self.taken_from_any, *self._unfit_pairs()]:
            told["pairs"] = pairs
        return told

    def _unfit_pairs(self) -> list[list[int]]:
        """Return the pairs of a receive and its message in which the message does not fit.

        Return at most ``MAX_PAIRS`` pairs.
        """
        found = []
        for destination, receives in self.receives.items():
            claimed = set[int]()  # the senders whose earliest message belongs to an earlier receive
            for receive in _named_first(receives):
                send = self._earliest_send(destination, receive)
                if send is None or send.rank in claimed:
                    continue
                claimed.add(send.rank)
                if not _fits(send, receive):
                    found.append(_pair(send, receive))
        return found[:MAX_PAIRS]

    def _earliest_send(self, destination: Destination, receive: Posted) -> Posted | None:
        """Return the earliest message that a receive may take; None if there is no such message."""
        if destination not in self.sends:
            return None
        sends, peer = self.sends[destination], receive.operation.peer
        senders = sends.values() if peer is None else [sends[peer]] if peer in sends else []
        return min((own[0] for own in senders if own), key=_by_position, default=None)

    def _match(self, destination: Destination) -> None:
        """Give messages to the receives of a destination, in the order of these receives.

        As in gloo, receives that name their peer come first. A receive gets the earliest message
        from its peer, or from any rank if it names no peer. The receive waits if there is no
        message, or if this message has no bytes yet, does not fit, or is withheld. A message that
        does not fit is not given to a later receive either.
        """
        sends, waiting = self.sends[destination], deque[Posted]()
        unfit: set[int] = set()  # the senders whose earliest message does not fit its receive
        for receive in _named_first(self.receives[destination]):
            send = self._earliest_send(destination, receive)
            if send is not None and not _fits(send, receive):
                unfit.add(send.rank)
            if send is None or not send.is_here or send.rank in unfit:
                waiting.append(receive)
                continue
            if self.in_step.withhold_unless_passed_on(receive.operation, send.rank, self.size):
                waiting.append(receive)
                continue
            self.in_step.note_received(receive.operation, send.rank)
            sends[send.rank].popleft()
            if receive.operation.peer is None:
                self.taken_from_any.append(_pair(send, receive))
            self._end(send, b"")
            self._end(receive, send.blob, source=receive.operation.group.index(send.rank))
        self.receives[destination] = waiting

    def _destination(self, operation: Operation) -> Destination:
        """Return the destination of the message that a send or a receive is about.

        In strict order all messages have the same tag, because nccl has no tags.
        """
        destination = destination_of(operation)
        return destination._replace(tag=TAG) if self.order else destination

    def _answer_collective(self, together: list[Posted]) -> None:
        """Answer a collective. All its ranks have joined it.

        If the ranks disagree, or if ``collective_results`` returns None, no rank gets an answer.
        """
        agree = difference([posted.operation for posted in together]) is None
        results = collective_results(together) if agree else None
        if results is None:
            self.unanswered += [[posted.rank, posted.operation.at] for posted in together]
            return
        for posted, result in zip(together, results):
            self._end(posted, result)


def _group_key(operation: Operation) -> GroupKey:
    return tuple(operation.group), operation.group_name


def _by_position(posted: Posted) -> int:
    return posted.position


def _named_first(receives: Iterable[Posted]) -> list[Posted]:
    """Return the receives that name their sender, then the others, each in the given order."""
    return sorted(receives, key=lambda receive: receive.operation.peer is None)


def _pair(send: Posted, receive: Posted) -> list[int]:
    """Return [rank, time] of a send, followed by rank and time of the receive that it belongs to.

    The time identifies an operation of the rank: the hub notes it when the operation arrives.
    """
    return [send.rank, send.operation.at, receive.rank, receive.operation.at]


def _fits(send: Posted, receive: Posted) -> bool:
    """Return whether a message has the number of elements and the dtype that a receive expects."""
    return (send.operation.elements, send.operation.dtype) == (
        receive.operation.elements,
        receive.operation.dtype,
    )


def collective_results(together: list[Posted]) -> list[bytes] | None:
    """Return the bytes that each rank of a collective gets, in the order of the group.

    Return None in three cases: the data that the ranks sent do not fit together, the dtype does not
    allow the reduction, or a result does not have the size that its rank expects.
    """
    results = _results(together)
    if results is None or any(
        not _has_room(posted, result) for posted, result in zip(together, results)
    ):
        return None
    return results


def _has_room(posted: Posted, result: bytes) -> bool:
    """Return whether a result has the number of bytes that its rank expects.

    An empty result and the result of a barrier always fit.
    """
    operation = posted.operation
    if operation.kind == "barrier":
        return True
    return len(result) in (0, sum(operation.received) * combine.ITEMSIZES[_dtype(operation)])


def _dtype(operation: Operation) -> str:
    assert operation.dtype is not None  # only a barrier may have no dtype, see ``check``
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
    if first.kind not in ("all_reduce", "reduce_scatter", "reduce"):
        raise ValueError(f"the hub does not carry out {first.kind}")
    dtype, reduction = _dtype(first), first.reduction
    if reduction is None or not combine.can_reduce(dtype, reduction):
        return None
    total = combine.reduced(blobs, dtype, reduction)
    if first.kind == "all_reduce":
        return [total] * n
    if first.kind == "reduce_scatter":
        if len(first.sent) == n:  # a list of blocks, which need not be equally large
            return combine.cut_by(total, first.sent, combine.ITEMSIZES[dtype])
        return combine.cut(total, n)
    # On ranks other than the root, the output of a reduce is undefined. gloo puts partial sums into
    # this output. The hub puts NaN into it, or ``UNFILLED`` for integers.
    return [total if rank == root else combine.unfilled(total, dtype) for rank in range(n)]


def _exchange(together: list[Posted]) -> list[bytes] | None:
    n = len(together)
    itemsize = combine.ITEMSIZES[_dtype(together[0].operation)]
    sent = [posted.pieces[0] for posted in together]
    if any(sent[i][j] != together[j].pieces[1][i] for i in range(n) for j in range(n)):
        return None
    parts = [combine.cut_by(posted.blob, posted.pieces[0], itemsize) for posted in together]
    return [b"".join(parts[i][j] for i in range(n)) for j in range(n)]


def attach_bytes(posted: Posted, blob: bytes) -> None:
    """Give an operation its bytes. Raises NotAllowed if it has announced a different number."""
    if len(blob) != posted.due:
        raise frames.NotAllowed("an operation with more or fewer bytes than it announced")
    posted.blob = blob


def bytes_due(operation: Operation) -> int:
    """Return how many bytes a rank sends for its part in an operation."""
    if operation.kind in ("broadcast", "scatter"):
        return operation.bytes if operation.root == operation.rank else 0
    return 0 if operation.kind in ("recv", "barrier") else operation.bytes


def check(posted: Posted) -> None:
    """Raise NotAllowed if an operation's pieces, peer, root, dtype or bytes are not valid."""
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
        raise frames.NotAllowed("an operation without proper split sizes")
    others = [other for other in (operation.peer, operation.root) if other is not None]
    if not set(others) <= set(operation.group):
        which = "peer" if operation.peer not in (None, *operation.group) else "root"
        raise frames.NotAllowed(f"an operation with a {which} that is not in its group")
    itemsize = combine.ITEMSIZES.get(operation.dtype or "", 0)
    if operation.kind == "all_to_all" and [operation.sent, operation.received] != pieces:
        raise frames.NotAllowed("an all-to-all whose split sizes are not what it sends or receives")
    if operation.kind != "barrier" and not itemsize:
        raise frames.NotAllowed("an operation whose dtype the grader does not support")
    if operation.kind != "barrier" and operation.bytes % itemsize:
        raise frames.NotAllowed("an operation whose bytes do not fit its dtype")
    if sum(operation.received) * itemsize > frames.MAX_BLOB:
        raise frames.NotAllowed(f"an operation with a result above {frames.MAX_BLOB >> 20} MiB")
    if operation.bytes != sum(operation.sent or operation.received) * itemsize:
        raise frames.NotAllowed("an operation whose bytes do not match its elements")
