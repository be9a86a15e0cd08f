"""This module adds marks to the trail of a rank.

It runs beside student code, and implements the argument ``mark`` of drivers.
"""

import os
import time
from time import monotonic_ns  # bound early, because student code may change the module
from typing import Any, NoReturn

from grader.rank.link import GO, Link
from grader.rank.recorder import Recorder
from grader.rank.work import Network
from grader.wire import frames
from grader.wire.callbacks import CallOptions


class Marks:
    """Adds marks to a rank's trail, which is the list of its events.

    If the judge asks for a delay, the rank waits before one of the marks.
    """

    def __init__(self, link: Link, current: dict, network: Network | None) -> None:
        self.link, self.current, self.network = link, current, network
        # At most one pair (mark, seconds). Before this mark, the rank waits for the judge's GO
        # frame, and then for this many seconds.
        self.held: list = []
        # whether the judge has asked for this rank's processor time before each send
        self.pauses = False
        # the judge's functions that the student's function may call, if no hub serves them
        self.served: CallOptions | None = None

    def __call__(self, name: str) -> None:
        self._wait_before(name)
        self.link.send(frames.EVENT, {**self.current, "mark": name, "at": monotonic_ns()})

    def use(self, name: str) -> Any:
        """Use one of the functions that the judge provides, and return the result.

        Raises StopIteration if a sweep makes more runs than the judge has answers for.
        """
        if self.served:
            self(name)
            try:
                return self.served.use(name)
            except LookupError:
                raise StopIteration from None
        self._wait_before(name)
        assert self.network is not None  # without ``served``, the hub serves the functions
        answer = self.link.take(self.network.ask(frames.USE, {"use": name})).meta
        if "gives" not in answer:
            raise StopIteration
        return answer["gives"]

    def before_a_send(self) -> None:
        """Let the hub measure this rank's processor time, if the judge has asked for it."""
        if self.pauses:
            self.use(frames.PAUSE)

    def _wait_before(self, name: str) -> None:
        if self.held and self.held[0][0] == name:
            _, seconds = self.held.pop()
            self.link.send(frames.HELD, self.current)
            self.link.take(GO)
            time.sleep(seconds)


def announce_exit(mark: Marks, recorder: Recorder) -> None:
    """Make ``os._exit`` add a mark to the trail. The mark names the line that called ``os._exit``.

    The mark helps to find out why the rank has ended.
    """
    leave, own = os._exit, os.getpid()

    def announced(status: int) -> NoReturn:
        try:
            # A process that the rank has forked adds no mark. Its frame could get into the middle
            # of a frame of the rank.
            if os.getpid() == own:
                file, line = recorder.caller()
                mark(f"os._exit({status}) at {file}:{line}")
        finally:
            leave(status)

    os._exit = announced
