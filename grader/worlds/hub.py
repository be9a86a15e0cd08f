"""The network of one world: every operation of every rank comes here, is matched, and is answered. Runs in the keeper.

Nothing else connects the ranks, so the hub knows who communicated what, when, and in which order. It tells the judge, and passes
on all other frames between the judge and each rank. A rank's frames are those of a stranger.
"""

import selectors
import socket
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from time import monotonic_ns

from grader.evidence.agreement import difference
from grader.evidence.trail import Operation, read_event
from grader.worlds import combine, frames
from grader.worlds.keys import Keys

MOST_HELD = 1 << 26  # bytes that wait for one rank, or for what one rank has posted to meet its counterpart
MOST_OPEN = 50_000  # operations of a rank that are not answered yet
MOST_THREADS = 64  # of a rank, that wait
MOST_QUEUED = 1 << 25  # bytes for the judge, before a rank is read no further

Lane = tuple  # what must be equal for operations to meet


@dataclass
class Posted:
    """An operation that a rank has started, and that is not answered yet."""

    number: int
    operation: Operation
    blob: bytes
    pieces: list[list[int]]  # of an all-to-all: elements to each rank, and from each

    @property
    def rank(self) -> int:
        return self.operation.rank


@dataclass
class End:
    """One end of the hub: a socket, and what could not be written to it yet."""

    socket: socket.socket
    reader: frames.Reader = field(default_factory=frames.Reader)
    queue: deque = field(default_factory=deque)
    queued: int = 0
    is_open: bool = True

    def write(self, data: bytes) -> None:
        self.queue.append(memoryview(data))
        self.queued += len(data)
        self.flush()

    def flush(self) -> None:
        """Write as much as the socket takes at once. Raises OSError where nobody is at the other end."""
        while self.queue:
            try:
                sent = self.socket.send(self.queue[0], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            except BlockingIOError:
                return
            self.queued -= sent
            self.queue[0] = self.queue[0][sent:]
            if not self.queue[0]:
                self.queue.popleft()


class Hub:
    """``judges[r]`` and ``ranks[r]`` are the sockets to the judge and to rank r."""

    def __init__(self, judges: list[socket.socket], ranks: list[socket.socket], tell: Callable[[dict], None]) -> None:
        self.size, self.tell = len(ranks), tell
        self.judges, self.ranks = [End(s) for s in judges], [End(s) for s in ranks]
        self.selector = selectors.DefaultSelector()
        self.counts: dict[tuple, int] = defaultdict(int)  # (rank, group) → its collectives so far
        self.collectives: dict[tuple, dict[int, Posted]] = defaultdict(dict)
        self.sends: dict[Lane, deque[Posted]] = defaultdict(deque)  # (group, target, tag)
        self.receives: dict[Lane, deque[Posted]] = defaultdict(deque)
        self.held = [0] * self.size
        self.unanswered: list[set[int]] = [set() for _ in range(self.size)]  # the numbers of what each rank asked for
        self.waits: dict[int, list] = {}  # rank → what its threads wait for, all of them
        self.told_standstill: dict[int, list] | None = None
        self.keys = Keys()
        for rank, (judge, own) in enumerate(zip(self.judges, self.ranks)):
            for end in (judge, own):
                end.socket.setblocking(False)
            self.selector.register(judge.socket, selectors.EVENT_READ, (self._on_judge, rank))

    def serve(self) -> None:
        """Read and write what can be, without waiting."""
        for key, events in self.selector.select(0):
            handle, rank = key.data
            if not self._end_of(key.fileobj, rank).is_open:
                continue  # closed by what came before it
            try:
                if events & selectors.EVENT_WRITE:
                    self._end_of(key.fileobj, rank).flush()
                if events & selectors.EVENT_READ:
                    handle(rank)
            except frames.FrameError as error:
                self.tell({"refused": str(error)[:300], "rank": rank})
                self._hang_up(rank)
            except OSError:
                self._hang_up(rank)
        self._choose_events()
        self._look_for_standstill()

    def _look_for_standstill(self) -> None:
        """Tell the judge, once, when every rank waits for what no rank will do any more."""
        stands = all(end.is_open for end in self.ranks) and len(self.waits) == self.size
        if stands and self.told_standstill != self.waits:
            self.told_standstill = dict(self.waits)
            self.tell({"standstill": [rank for rank, waits in self.waits.items() if frames.FOR_GO in waits]})
        elif not stands:
            self.told_standstill = None

    def fileno(self) -> int:
        return self.selector.fileno()

    def _end_of(self, its: socket.socket, rank: int) -> End:
        return self.ranks[rank] if its is self.ranks[rank].socket else self.judges[rank]

    def _choose_events(self) -> None:
        """Wait for room where something is queued; and for a rank's frames only while the judge keeps up with them."""
        for rank in range(self.size):
            for end, other in ((self.judges[rank], self.ranks[rank]), (self.ranks[rank], self.judges[rank])):
                if not end.is_open or end.socket not in self.selector.get_map():
                    continue
                events = selectors.EVENT_WRITE if end.queue else 0
                if other.queued < MOST_QUEUED or end is self.judges[rank]:
                    events |= selectors.EVENT_READ
                key = self.selector.get_key(end.socket)
                if events and events != key.events:
                    self.selector.modify(end.socket, events, key.data)

    def _hang_up(self, rank: int) -> None:
        """A rank is gone, or is not listened to any more. What it has posted stays: others may have been waiting for that."""
        for end in (self.ranks[rank], self.judges[rank]):
            if end.is_open:
                if end.socket in self.selector.get_map():
                    self.selector.unregister(end.socket)
                end.is_open = False
                end.socket.close()

    # ——— what arrives

    def _on_judge(self, rank: int) -> None:
        data = self.judges[rank].socket.recv(1 << 18)
        if not data:
            raise ConnectionResetError
        for frame in self.judges[rank].reader.feed(data):
            nonce = self.judges[rank].reader.nonce
            if self.ranks[rank].reader.nonce is None:  # the first frame: from now on the rank may speak
                self.ranks[rank].reader.nonce = nonce
                self.selector.register(self.ranks[rank].socket, selectors.EVENT_READ, (self._on_rank, rank))
            if frame.kind == frames.GO:
                self.waits.pop(rank, None)
            self.ranks[rank].write(frames.pack(frame.kind, frame.meta, frame.blob, nonce))

    def _on_rank(self, rank: int) -> None:
        data = self.ranks[rank].socket.recv(1 << 18)
        if not data:
            raise ConnectionResetError
        for frame in self.ranks[rank].reader.feed(data):
            self.waits.pop(rank, None)  # whoever says something does not wait
            if frame.kind == frames.WAIT:
                self._on_wait(rank, frame.meta)
            elif frame.kind == frames.OPERATION:
                self._post(self._read(rank, frame))
            elif frame.kind == frames.STORE:
                self._expect(rank, frame.meta.get("number"))
                for asker, number, answer in self.keys.ask(rank, frame.meta):
                    self._write(asker, {"to": number, **answer})
            elif frame.kind == frames.EVENT:
                if "operation" in frame.meta:
                    raise frames.FrameError("an operation told to the judge, past the hub")
                self._pass_on(rank, frame.kind, frame.meta | {"at": monotonic_ns()})
            else:
                self._pass_on(rank, frame.kind, frame.meta, frame.blob)

    def _expect(self, rank: int, number: object) -> None:
        """Remember that a rank has asked for an answer. Raises FrameError for a number that is none, or is taken."""
        if not frames.is_whole(number) or number in self.unanswered[rank]:
            raise frames.FrameError("an operation of no known form")
        if len(self.unanswered[rank]) >= MOST_OPEN:
            raise frames.FrameError(f"more than {MOST_OPEN} operations that wait for others")
        self.unanswered[rank].add(number)

    def _on_wait(self, rank: int, meta: dict) -> None:
        """A rank waits with all its threads: unless one of them has got its answer meanwhile."""
        waits = meta.get("for")
        if not isinstance(waits, list) or len(waits) > MOST_THREADS:
            raise frames.FrameError("a wait of no known form")
        known = [frames.is_whole(key) or key in (frames.FOR_GO, frames.FOR_NOTHING) for key in waits]
        if not all(known):
            raise frames.FrameError("a wait of no known form")
        if not any(frames.is_whole(key) and key not in self.unanswered[rank] for key in waits):
            self.waits[rank] = waits

    def _pass_on(self, rank: int, kind: bytes, meta: dict, blob: bytes = b"") -> None:
        self.judges[rank].write(frames.pack(kind, meta, blob, self.ranks[rank].reader.nonce))

    def _read(self, rank: int, frame: frames.Frame) -> Posted:
        """The operation in a frame. Raises FrameError where it is none."""
        content, number, pieces = (frame.meta.get(name) for name in ("operation", "number", "pieces"))
        if not isinstance(content, dict) or not frames.is_whole(number):
            raise frames.FrameError("an operation of no known form")
        event = {"call": frame.meta.get("call"), "operation": content | {"at": monotonic_ns()}}
        operation = read_event(rank, event, self.size)
        posted = Posted(number, operation, frame.blob, pieces)
        _check(posted)
        self._expect(rank, number)
        self._pass_on(rank, frames.EVENT, event)
        return posted

    # ——— what meets what

    def _post(self, posted: Posted) -> None:
        operation = posted.operation
        self.held[posted.rank] += len(posted.blob)
        if self.held[posted.rank] > MOST_HELD:
            self.tell({"limit": f"sent more than {MOST_HELD >> 20} MiB that nobody has taken yet"})
            return
        group = (tuple(operation.group), operation.group_name)
        if operation.kind == "send":
            self.sends[group, operation.peer, operation.tag].append(posted)
            self._match((group, operation.peer, operation.tag))
        elif operation.kind == "recv":
            self.receives[group, operation.rank, operation.tag].append(posted)
            self._match((group, operation.rank, operation.tag))
        else:
            position = self.counts[posted.rank, group]
            self.counts[posted.rank, group] += 1
            together = self.collectives[group, position]
            together[posted.rank] = posted
            if len(together) == len(operation.group):
                del self.collectives[group, position]
                self._collect([together[rank] for rank in operation.group])

    def _match(self, lane: Lane) -> None:
        """Give each receive, in order, the earliest message that it may take."""
        sends, waiting = self.sends[lane], deque()
        for receive in self.receives[lane]:
            peer = receive.operation.peer
            send = next((s for s in sends if peer in (None, s.rank)), None)
            if send is None or not self._fits(send, receive):
                waiting.append(receive)
                continue
            sends.remove(send)
            self._answer(send, b"")
            self._answer(receive, send.blob, source=receive.operation.group.index(send.rank))
        self.receives[lane] = waiting

    @staticmethod
    def _fits(send: Posted, receive: Posted) -> bool:
        return (send.operation.elements, send.operation.dtype) == (receive.operation.elements, receive.operation.dtype)

    def _collect(self, together: list[Posted]) -> None:
        """A collective that all its ranks have joined. Where they disagree, nobody gets an answer."""
        if difference([posted.operation for posted in together]) is not None:
            return
        results = collect(together)
        if results is not None:
            for posted, result in zip(together, results):
                self._answer(posted, result)

    def _answer(self, posted: Posted, blob: bytes, **more: int) -> None:
        self.held[posted.rank] -= len(posted.blob)
        self._write(posted.rank, {"to": posted.number, **more}, blob)

    def _write(self, rank: int, meta: dict, blob: bytes = b"") -> None:
        end = self.ranks[rank]
        self.unanswered[rank].discard(meta["to"])
        if meta["to"] in self.waits.get(rank, ()):
            del self.waits[rank]
        if not end.is_open:
            return
        try:
            end.write(frames.pack(frames.ANSWER, meta, blob, end.reader.nonce))
        except OSError:
            self._hang_up(rank)
        if end.queued > MOST_HELD:
            self.tell({"limit": f"left more than {MOST_HELD >> 20} MiB of what it receives unread"})


def collect(together: list[Posted]) -> list[bytes] | None:
    """What each rank of a collective gets, in the order of the group; None where what they have sent does not fit together."""
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
    if not combine.can_reduce(first.dtype, first.reduction):
        return None
    total = combine.reduced(blobs, first.dtype, first.reduction)
    if first.kind == "all_reduce":
        return [total] * n
    if first.kind == "reduce_scatter":
        return combine.cut(total, n)
    # On the others a reduce leaves what no one may rely on: with gloo partial sums, here no numbers.
    return [total if rank == root else combine.unfilled(total, first.dtype) for rank in range(n)]


def _exchange(together: list[Posted]) -> list[bytes] | None:
    n = len(together)
    itemsize = combine.ITEMSIZES[together[0].operation.dtype]
    sent = [posted.pieces[0] for posted in together]
    if any(sent[i][j] != together[j].pieces[1][i] for i in range(n) for j in range(n)):
        return None
    parts = [combine.cut_by(posted.blob, posted.pieces[0], itemsize) for posted in together]
    return [b"".join(parts[i][j] for i in range(n)) for j in range(n)]


def _check(posted: Posted) -> None:
    """Raise FrameError where an operation's bytes are not those of the tensors that it tells of."""
    operation, pieces = posted.operation, posted.pieces
    n = len(operation.group) if operation.kind == "all_to_all" else 0
    proper = (
        isinstance(pieces, list)
        and len(pieces) == 2
        and all(isinstance(way, list) and len(way) == n for way in pieces)
        and all(frames.is_whole(count) and 0 <= count < frames.MAX_BLOB for way in pieces for count in way)
    )
    if not proper:
        raise frames.FrameError("an operation without proper pieces")
    sends = operation.kind not in ("recv", "barrier")
    if operation.kind in ("broadcast", "scatter"):
        sends = operation.root == operation.rank
    others = [other for other in (operation.peer, operation.root) if other is not None]
    if not set(others) <= set(operation.group):
        raise frames.FrameError("an operation with a rank that is not in its group")
    itemsize = combine.ITEMSIZES.get(operation.dtype or "", 0)
    if operation.kind == "all_to_all" and operation.bytes != sum(pieces[0]) * itemsize:
        raise frames.FrameError("an operation without proper pieces")
    if operation.kind != "barrier" and (not itemsize or operation.bytes % itemsize):
        raise frames.FrameError("an operation without a proper dtype")
    if len(posted.blob) != (operation.bytes if sends else 0):
        raise frames.FrameError("an operation that does not bring the bytes which it tells of")
