"""A socket of the hub's, which is written to without waiting."""

import socket
from collections import deque
from dataclasses import dataclass, field

from grader.wire import frames


@dataclass
class End:
    """One end of the hub: a socket, and what could not be written to it yet."""

    socket: socket.socket
    reader: frames.Reader = field(default_factory=frames.Reader)
    queue: deque = field(default_factory=deque)
    queued: int = 0
    is_open: bool = True
    events: int = 0  # that are waited for

    def write(self, data: bytes) -> None:
        self.queue.append(memoryview(data))
        self.queued += len(data)
        self.flush()

    def flush(self) -> None:
        """Write as much as the socket takes at once.

        Raises OSError where nobody is at the other end.
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
