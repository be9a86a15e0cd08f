"""This module keeps the operations of a rank that have not ended.

It runs beside student code. An operation writes the received data into its tensors when student
code waits for the operation, and not before.
"""

import itertools
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from time import monotonic  # bound early, because student code may replace ``time.monotonic``
from typing import Any

import torch
import torch.distributed as dist

from grader.rank.link import NOTHING, Link
from grader.rank.tensor_memory import MemoryInUse, Tensors, fill
from grader.wire import frames

# A program counts as waiting for a collective if it has asked this many times whether the
# collective is completed, and always got the answer no. From then on, each call of ``is_completed``
# waits for the result. This wait lasts a tenth of the time since then, but at least
# ``POLL_SECONDS[0]`` and at most ``POLL_SECONDS[1]`` seconds. So even on a slow machine, a program
# that asks in a loop is idle most of the time, like a program that calls ``wait``.
PATIENT_POLLS = 50
POLL_SECONDS = 0.02, 0.1


class Network:
    """Holds the objects that all process groups on one rank share.

    Examples are the rank's connection (``link``), and the counter of the rank's operations.
    """

    def __init__(self, link: Link, current: dict) -> None:
        self.link, self.current = link, current
        self.numbers = itertools.count()
        self.batch: int | None = None  # the number of the batch that is being started
        self.is_strict = False  # whether the hub runs operations in nccl's order
        self.store: dist.Store | None = None
        self.issued: list[Issued] = []  # the operations of this call, in order of issue
        # returns file and line of the student code that led here
        self.caller: Callable[[], tuple] = lambda: (None, None)
        # If the rank's program is traced, these functions are called when an operation is issued,
        # and when the program waits for an operation. Their argument is the operation's position in
        # this call.
        self.on_issue: Callable[[int], None] = lambda position: None
        self.on_wait: Callable[[int], None] = lambda position: None

    def ask(self, kind: bytes, content: dict, blob: bytes = b"") -> int:
        """Send an operation or a question, and return the number that its answer will have."""
        number = next(self.numbers)
        self.link.send(kind, {**self.current, "number": number, **content}, blob)
        return number

    def post(
        self,
        record: dict,
        pieces: list[list[int]] | None,
        memory: MemoryInUse | None,
        blocks: Tensors,
    ) -> int:
        """Send an operation to the hub, and return the number that its answer will have.

        ``blocks`` are tensors that the operation fills, each of which is one block of memory. A
        collective sends its bytes immediately. The bytes of a send follow when the rank next waits.
        """
        is_send = record["kind"] == "send"
        blob = memory.read() if memory and not is_send else b""
        meta = {"operation": record, "pieces": pieces or [[], []], "batch": self.batch}
        for pending in list(self.link.owed.values()):
            pending.note_landing(blocks)
        number = self.ask(frames.OPERATION, meta, blob)
        if memory and is_send and record["bytes"]:
            memory.keep()
            self.link.owe(number, memory)
        return number

    def note_issue(self, kind: str) -> "Issued":
        """Record that the rank issues an operation, and return the record."""
        issued = Issued(kind, len(self.issued))
        self.on_issue(issued.position)
        self.issued.append(issued)
        return issued

    def end_call(self) -> list[str]:
        """Forget the operations of this call, and return marks for operations used wrongly.

        An operation was used wrongly in three cases: nobody waited for it, its memory was
        overwritten before the wait, or its output overlaps its input. The hub itself marks the
        sends that nobody waited for. If the data of such a send have not been sent yet, send
        useless numbers in their place: see ``MemoryInUse.spoil``. Also return marks for the first
        operations whose tensor the program may have read before it was filled.
        """
        issued, self.issued = self.issued, []
        marks, left_open, counts = [], [], Counter[str]()
        for operation in issued:
            number, counts[operation.kind] = counts[operation.kind], counts[operation.kind] + 1
            if not operation.was_awaited and operation.kind != "send":
                marks.append(f"{frames.NEVER_AWAITED} {operation.kind} {number}")
            if operation.was_overwritten:
                marks.append(f"{frames.OVERWRITTEN} {operation.kind} {number}")
            if operation.is_overlapping:
                marks.append(f"{frames.OVERLAPPING} {operation.kind} {number}")
            if operation.unfilled_at and operation.was_left_open:
                left_open.append(f"{frames.LEFT_OPEN} {operation.kind} {number}")
        for contents in list(self.link.owed.values()):
            contents.spoil()
        self.link.pay()
        return marks + left_open[: frames.MAX_LEFT_OPEN]


@dataclass
class Issued:
    """The record of an operation. The record is kept until the end of the call."""

    kind: str
    position: int  # among all operations of the rank in this call
    was_awaited: bool = False
    was_overwritten: bool = False
    # whether an output of the operation overlaps an input; then gloo sends some entries after it
    # has overwritten them
    is_overlapping: bool = False
    # the file and line that issued the operation; None if it fills no tensor
    unfilled_at: tuple | None = None
    was_left_open: bool = True  # False if a wait in the line ``unfilled_at`` ended the operation


class HubWork(dist.Work):
    """A pending operation of a group on the hub."""

    def __init__(
        self,
        network: Network,
        issued: Issued,
        number: int,
        memory: MemoryInUse | None,
        landing: Tensors,
        output: Any,
        in_order: bool,
    ) -> None:
        super().__init__()
        self.in_order = in_order
        self.network = network
        self.number = number
        self.landing = list(landing)
        self.output = output
        self.issued, self.memory = issued, memory
        self.was_awaited = False
        self.polls = 0  # how often ``is_completed`` has returned False
        self.waits_since = 0.0  # the time at which the polling program began to count as waiting
        self.lock = threading.Lock()
        self.answer: dict | None = None  # the fields of the hub's answer, without the bytes
        self.future: torch.futures.Future | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        # With gloo, a second wait for a message never ends.
        if self.was_awaited and self.issued.kind in ("send", "recv"):
            self.network.link.take(NOTHING)
        self._take()
        self.was_awaited = True
        return True

    def _take(self) -> bool:
        """Wait for the answer, write its data into the operation's tensors, and return True."""
        with self.lock:
            if self.answer is None:
                self.network.on_wait(self.issued.position)
                if self.issued.unfilled_at:
                    self.issued.was_left_open = self.issued.unfilled_at != self.network.caller()
                answer = self.network.link.take(self.number)
                if self.memory:
                    self.issued.was_overwritten = self.memory.was_overwritten()
                    self.memory = None  # the memory is no longer in use
                fill(self.landing, answer.blob, self.in_order)
                self.answer, self.issued.was_awaited = answer.meta, True
        return True

    def is_completed(self) -> bool:
        """Return whether the operation is completed.

        Before any wait, the first call returns False, so that a program that asks only once is not
        right by luck. As with gloo, a send or a receive is completed only after somebody has waited
        for it. There is one exception: in nccl's order, a receive is completed when its data has
        come. A program that asks more than ``PATIENT_POLLS`` times for a collective counts as
        waiting.
        """
        if self.answer is not None:
            return True
        if self.issued.kind == "send":
            return False
        if self.issued.kind == "recv" and not self.network.is_strict:
            self.network.link.pay()
            return False
        self.polls += 1
        if self.polls == 1:
            return False
        self.network.link.pay()
        if self.polls == PATIENT_POLLS + 1:
            self.network.link.tell_poll(self.number)
            self.waits_since = monotonic()
        waits = self.polls > PATIENT_POLLS and self.issued.kind != "recv"
        has = self.network.link.has(self.number, self._poll_seconds() if waits else 0.0)
        return has and self._take()

    def _poll_seconds(self) -> float:
        least, most = POLL_SECONDS
        return min(max(least, (monotonic() - self.waits_since) / 10), most)

    def is_success(self) -> bool:
        return self.is_completed()

    def synchronize(self) -> None:
        self._take()

    def exception(self) -> None:
        return None

    def result(self) -> list[torch.Tensor]:
        return self.landing

    def source_rank(self) -> int:
        if self.answer is None:
            raise RuntimeError("the source rank is not known yet: call wait() before source_rank()")
        return self.answer["source"]

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future:
        if self.issued.kind in ("send", "recv"):  # gloo raises the same error
            raise RuntimeError("getFuture not implemented.")
        if self.issued.kind == "reduce_scatter" and not self.network.is_strict:  # as gloo does
            raise RuntimeError("Work::getFuture not implemented.")
        if self.future is None:
            self.future = torch.futures.Future()
            threading.Thread(target=self._complete, args=(self.future,), daemon=True).start()
        return self.future

    def _complete(self, future: torch.futures.Future) -> None:
        self._take()
        future.set_result(self.output)


class CoalescedWork(dist.Work):
    """Several operations that count as one."""

    def __init__(self, works: list[HubWork]) -> None:
        super().__init__()
        self.works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        return all([work.wait() for work in self.works])

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self.works)

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        return [tensor for work in self.works for tensor in work.landing]

    def get_future(self) -> torch.futures.Future:
        return torch.futures.collect_all([work.get_future() for work in self.works]).then(
            lambda _: self.result()
        )
