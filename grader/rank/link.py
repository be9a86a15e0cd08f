"""A rank sends frames to the judge and to the hub through its only socket, and reads the answers.

This code runs beside student code.
"""

import select
import socket
import threading
from collections.abc import Callable
from os import _exit as leave  # bound early, because ``main`` makes ``os._exit`` add a mark first
from typing import Any, Protocol

from grader.wire import frames, os_support

# A thread waits for the answer to an operation, or for one of these.
GO, NOTHING = frames.FOR_GO, frames.FOR_NOTHING


class Contents(Protocol):
    """The data that an operation sends. It is read as late as possible, at the next wait."""

    def read(self, keep: bool) -> bytes:
        """Return the data. If ``keep`` is True, also keep its hash, to notice a later change."""

    def spoil(self) -> None:
        """Make ``read`` return NaN, or ``UNFILLED`` for integers, from now on."""

    def note_landing(self, landing: Any) -> None:
        """Note whether an operation that fills the tensors in ``landing`` overwrites the data."""


class Link:
    """A socket that any thread may write to and wait at.

    There is no special thread that reads the socket. One of the waiting threads reads it, and gives
    each other thread the frame that this thread waits for.
    """

    def __init__(self, descriptor: int) -> None:
        self.socket = socket.socket(fileno=descriptor)
        self.reader = frames.Reader()
        self.lock = threading.Lock()
        self.arrived: dict[Any, frames.Frame] = {}  # key → frame that no thread has taken yet
        self.changed = threading.Condition()
        self.is_read = False  # whether a waiting thread reads the socket now
        self.waits: dict[int, Any] = {}  # thread → what it waits for
        self.tells_waits = False  # whether to tell the hub what the threads wait for
        self.tell_more: Callable[[], dict] = dict  # returns fields to add to each WAIT frame
        # the receipts that came with the answers to this call's sends: see ``hub.sends``
        self.receipts: list[int] = []
        self.owed: dict[int, Contents] = {}  # an operation's number → contents to be sent

    def first(self) -> frames.Frame:
        """Wait for the judge's first frame and return it. This frame also contains the nonce."""
        while not (found := self._read()):
            pass
        return found[frames.FOR_INPUTS]

    def send(self, kind: bytes, meta: dict, blob: bytes = b"") -> None:
        self.learn_nonce()
        with self.lock:
            for part in self.reader.parts(kind, meta, blob):
                self._write(part)

    def pack(self, kind: bytes, meta: dict, blob: bytes = b"") -> bytes:
        self.learn_nonce()
        return self.reader.pack(kind, meta, blob)

    def learn_nonce(self) -> None:
        """Wait for the judge's first frame, if it has not arrived yet."""
        if self.reader.nonce is None:
            self.first()

    def send_packed(self, packed: bytes) -> None:
        with self.lock:
            self._write(packed)

    def _write(self, data: bytes) -> None:
        """Send bytes. End the process if the other end is closed."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            leave(0)

    def owe(self, number: int, contents: Contents) -> None:
        """Send the contents of an operation when a thread next waits.

        If a thread waits already, send the contents immediately, because that thread may wait for
        this operation.
        """
        self.owed[number] = contents
        if self.waits:
            self.pay()

    def pay(self, awaited: Any = None) -> None:
        """Send all contents that ``owe`` has postponed, as they are now and in the order of issue.

        ``awaited`` is the number of the operation that a thread begins to wait for.
        """
        while self.owed:
            try:
                number = next(iter(self.owed))
                contents = self.owed.pop(number)
            except (KeyError, RuntimeError, StopIteration):  # another thread sends these contents
                continue
            self.send(frames.CONTENTS, {"number": number}, contents.read(keep=number != awaited))

    def take(self, key: Any) -> frames.Frame:
        """Wait for the frame of this key, and return it.

        If the frame is an answer, ``key`` is the number of the operation or question that it
        answers. If the judge sends the frame, ``key`` is a word (``GO``, ``FOR_INPUTS``). If
        ``key`` is ``NOTHING``, wait until the world ends.
        """
        self.pay(key)
        with self.changed:
            try:
                self._begin_to_wait(key)
                while key not in self.arrived:
                    self._read_or_wait()
            finally:  # a signal handler in student code may end this wait
                self.waits.pop(threading.get_ident(), None)
            frame = self.arrived.pop(key)
        if "receipt" in frame.meta:
            self.receipts.append(frame.meta["receipt"])
        return frame

    def _read_or_wait(self, seconds: float | None = None) -> None:
        """Read the socket. If another thread reads it already, wait until that thread has read.

        Do not take longer than ``seconds``, if given.
        """
        if self.is_read:
            self.changed.wait(seconds)
            return
        self.is_read = True
        # While this thread reads, other threads can begin to wait.
        self.changed.release()
        try:
            if seconds:
                select.select([self.socket], [], [], seconds)
            found = self._read() if seconds is None else self._read(socket.MSG_DONTWAIT)
        finally:
            self.changed.acquire()
            self.is_read = False
            self.changed.notify_all()
        self.arrived |= found

    def _begin_to_wait(self, key: Any) -> None:
        """Record that this thread waits for ``key``, unless the frame of this key has arrived.

        If the hub is the network, also tell the hub. If all threads wait now, tell it what each
        thread waits for. Otherwise tell it only the operation that this thread waits for, if any.
        """
        if key in self.arrived:
            return
        self.waits[threading.get_ident()] = key
        # Call ``pay`` again, because another thread may have issued a send after the last call, and
        # may not have seen yet that this thread waits.
        self.pay(key)
        if not self.tells_waits:
            return
        # ``threading`` does not count the threads that ``_thread`` has started. The system counts
        # these threads, and also threads that have not run yet.
        if len(self.waits) == max(threading.active_count(), os_support.threads()):
            self.send(frames.WAIT, {"for": list(self.waits.values()), **self.tell_more()})
        elif frames.is_whole(key):
            self.send(frames.AWAIT, {"number": key})

    def tell_poll(self, number: int) -> None:
        """Tell the hub that a thread asks again and again whether an operation is completed."""
        if self.tells_waits:
            self.send(frames.AWAIT, {"number": number})

    def has(self, key: Any, seconds: float = 0.0) -> bool:
        """Return whether the frame of this key has arrived.

        If the frame has not arrived yet, first wait for at most ``seconds``. This wait ends as soon
        as any data arrives. So the result may be False although the frame comes within ``seconds``.
        """
        with self.changed:
            if key not in self.arrived and (seconds or not self.is_read):
                self._read_or_wait(seconds)
            return key in self.arrived

    def _read(self, flags: int = 0) -> dict[Any, frames.Frame]:
        """Read the socket once, and return the complete frames by the keys that ``take`` uses.

        End the process if the other end is closed.
        """
        try:
            data = self.socket.recv(1 << 18, flags)
        except BlockingIOError:
            return {}
        if not data:
            leave(0)
        return {_key(frame): frame for frame in self.reader.feed(data)}


def _key(frame: frames.Frame) -> Any:
    if frame.kind == frames.ANSWER:
        return frame.meta["to"]
    return frames.FOR_INPUTS if frame.kind == frames.INPUTS else GO
