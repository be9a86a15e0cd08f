"""The rank's end of its only socket: frames to the judge and to the hub, and their answers.

Runs beside student code.
"""

import os
import socket
import threading
from collections.abc import Callable
from typing import Any, Protocol

from grader.wire import frames, os_support

# What a thread may wait for, beside the answer to an operation.
GO, NOTHING = frames.FOR_GO, frames.FOR_NOTHING


class Contents(Protocol):
    """What an operation sends, read as late as it may be: when its rank next waits."""

    def read(self, keep: bool) -> bytes:
        """Return it; ``keep`` is for comparing it later with what is there then."""

    def spoil(self) -> None:
        """Have numbers read from now on that nobody can compute with."""


class Wire:
    """A socket that any thread may write to, and wait at.

    No thread of its own reads: of those that wait, one does, and hands out what is meant for the
    others.
    """

    def __init__(self, descriptor: int) -> None:
        self.socket = socket.socket(fileno=descriptor)
        self.reader = frames.Reader()
        self.lock = threading.Lock()
        self.arrived: dict[Any, frames.Frame] = {}
        self.changed = threading.Condition()
        self.is_read = False  # by a thread that waits
        self.waits: dict[int, Any] = {}  # thread → what it waits for
        self.tells_waits = False
        self.tell_more: Callable[[], dict] = dict  # with a wait
        self.owed: dict[int, Contents] = {}  # by the operation's number

    def first(self) -> frames.Frame:
        """Wait for the judge's first frame, which also tells the nonce, and return it."""
        while not (found := self._read()):
            pass
        return found[frames.FOR_INPUTS]

    def send(self, kind: bytes, meta: dict, blob: bytes = b"") -> None:
        self.send_packed(self.pack(kind, meta, blob))

    def pack(self, kind: bytes, meta: dict, blob: bytes = b"") -> bytes:
        if self.reader.nonce is None:
            self.first()
        return self.reader.pack(kind, meta, blob)

    def send_packed(self, packed: bytes) -> None:
        with self.lock:
            self.socket.sendall(packed)

    def owe(self, number: int, contents: Contents) -> None:
        """Send the contents of an operation when a thread next waits; at once if one does already,
        perhaps for this.
        """
        self.owed[number] = contents
        if self.waits:
            self.pay()

    def pay(self, awaited: Any = None) -> None:
        """Send the contents that are owed, as they are now and in the order of issue.

        ``awaited`` is the operation that somebody begins to wait for.
        """
        while self.owed:
            try:
                number = next(iter(self.owed))
                contents = self.owed.pop(number)
            except (KeyError, RuntimeError, StopIteration):  # another thread was quicker
                continue
            self.send(frames.CONTENTS, {"number": number}, contents.read(keep=number != awaited))

    def take(self, key: Any) -> frames.Frame:
        """Wait for the answer to an operation, by its number, or for the judge's sign to go on;
        return it.
        """
        self.pay(key)
        with self.changed:
            self._begin_to_wait(key)
            while key not in self.arrived:
                if self.is_read:
                    self.changed.wait()
                    continue
                self.is_read = True
                self.changed.release()
                try:
                    found = self._read()
                finally:
                    self.changed.acquire()
                    self.is_read = False
                    self.changed.notify_all()
                self.arrived |= found
            self.waits.pop(threading.get_ident(), None)
            return self.arrived.pop(key)

    def _begin_to_wait(self, key: Any) -> None:
        """Tell the hub if no thread is left that could do anything."""
        if key in self.arrived:
            return
        self.waits[threading.get_ident()] = key
        # threading does not know the threads of _thread; the system does, also those that have not
        # run yet.
        if self.tells_waits and len(self.waits) == max(
            threading.active_count(), os_support.threads()
        ):
            self.send(frames.WAIT, {"for": list(self.waits.values()), **self.tell_more()})

    def has(self, key: Any) -> bool:
        """Return whether ``take`` would return at once."""
        with self.changed:
            if key not in self.arrived and not self.is_read:
                self.arrived |= self._read(socket.MSG_DONTWAIT)
            return key in self.arrived

    def _read(self, flags: int = 0) -> dict[Any, frames.Frame]:
        """Return what has arrived, by the key that ``take`` knows it by.

        End the process when nobody is at the other end.
        """
        try:
            data = self.socket.recv(1 << 18, flags)
        except BlockingIOError:
            return {}
        if not data:
            os._exit(0)
        return {_key(frame): frame for frame in self.reader.feed(data)}


def _key(frame: frames.Frame) -> Any:
    if frame.kind == frames.ANSWER:
        return frame.meta["to"]
    return frames.FOR_INPUTS if frame.kind == frames.INPUTS else GO
