"""The hub's sockets. Each rank has two: one to the judge, one to the rank. Writing never blocks."""

import selectors
import socket
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from grader.wire import frames

# If at least this many bytes of a rank are queued for the judge, the hub does not read from this
# rank.
MAX_QUEUED = 1 << 25


@dataclass
class End:
    """One connection of the hub: a socket, and the data that could not be written to it yet."""

    socket: socket.socket
    reader: frames.Reader = field(default_factory=frames.Reader)
    queue: deque[memoryview] = field(default_factory=deque)
    queued: int = 0  # bytes in the queue
    is_open: bool = True
    # the function that reads from the socket; None until the socket may be read
    handle: Callable[[int], None] | None = None
    events: int = 0  # the selector's events that the hub waits for; 0 for none

    def write(self, data: bytes) -> None:
        self.queue.append(memoryview(data))
        self.queued += len(data)
        self.flush()

    def flush(self) -> None:
        """Write as much as the socket accepts without blocking.

        Raises OSError if the other end is closed.
        """
        while self.queue:
            try:
                sent = self.socket.send(self.queue[0], socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            self.queued -= sent
            self.queue[0] = self.queue[0][sent:]
            if not self.queue[0]:
                self.queue.popleft()


class Connections:
    """All sockets of a world: ``judges[r]`` leads to the judge, and ``ranks[r]`` to rank r."""

    def __init__(self, judges: list[socket.socket], ranks: list[socket.socket]) -> None:
        self.judges, self.ranks = [End(s) for s in judges], [End(s) for s in ranks]
        self.selector = selectors.DefaultSelector()
        for end in (*self.judges, *self.ranks):
            end.socket.setblocking(False)

    def fileno(self) -> int:
        return self.selector.fileno()

    def begin_to_read(self, end: End, handle: Callable[[int], None], rank: int) -> None:
        """Let ``ready`` yield this end from now on. ``handle(rank)`` reads from the end."""
        end.handle, end.events = handle, selectors.EVENT_READ
        self.selector.register(end.socket, end.events, (end, rank))

    def ready(self) -> Iterator[tuple[End, int, int]]:
        """Yield (end, rank, events) for each socket that can be read or written now."""
        for key, events in self.selector.select(0):
            end, rank = key.data
            if end.is_open:  # an event that was handled before this one may have closed it
                yield end, rank, events

    def unread_bytes(self) -> int:
        """Return how many bytes are kept for ranks that have not read them yet.

        The ranks of a collective may get the same bytes. These bytes are kept and counted once.
        """
        kept = {
            id(part.obj): memoryview(part.obj).nbytes for end in self.ranks for part in end.queue
        }
        return sum(kept.values())

    def choose_events(self) -> None:
        """Choose for each socket whether to wait for room to write, and for data to read.

        Wait for room only if data is queued. Always read from the judge. Read from a rank only
        while fewer than ``MAX_QUEUED`` bytes are queued for the judge.
        """
        for rank, (judge, own) in enumerate(zip(self.judges, self.ranks)):
            for end, reads in ((judge, True), (own, judge.queued < MAX_QUEUED)):
                events = selectors.EVENT_WRITE * bool(end.queue) | selectors.EVENT_READ * reads
                if end.handle and end.is_open and events != end.events:
                    self._change_events(end, events, rank)

    def _change_events(self, end: End, events: int, rank: int) -> None:
        if not events:  # a selector cannot wait for nothing
            self.selector.unregister(end.socket)
        elif not end.events:
            self.selector.register(end.socket, events, (end, rank))
        else:
            self.selector.modify(end.socket, events, (end, rank))
        end.events = events

    def hang_up(self, rank: int) -> None:
        """Close both sockets of a rank, the one to the rank and the one to the judge."""
        for end in (self.ranks[rank], self.judges[rank]):
            if end.is_open:
                if end.socket in self.selector.get_map():
                    self.selector.unregister(end.socket)
                end.is_open = False
                end.socket.close()
