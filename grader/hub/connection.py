"""This module wraps a socket of the hub, so that writing to it never blocks."""

import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from grader.wire import frames


@dataclass
class End:
    """One connection of the hub: a socket, and the data that could not be written to it yet."""

    socket: socket.socket
    reader: frames.Reader = field(default_factory=frames.Reader)
    queue: deque = field(default_factory=deque)
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
