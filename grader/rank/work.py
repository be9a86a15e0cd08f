"""This module keeps the operations of a rank that have not ended, and the memory that they use.

It runs beside student code. An operation writes what it receives into its tensors when student code
waits for the operation, and not before.
"""

import ctypes
import itertools
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from grader.rank.link import NOTHING, Link
from grader.rank.tensors import is_freed
from grader.wire import combine, frames

Tensors = Sequence[torch.Tensor]
# A program counts as waiting for a collective if it has asked this many times whether the
# collective is completed, and always got the answer no. From then on each question takes up to
# ``POLL_SECONDS``, unless the collective's result arrives. So a program that asks in a loop is idle
# most of the time, like a program that calls ``wait``.
PATIENT_POLLS = 50
POLL_SECONDS = 0.02


class Network:
    """Holds what all process groups on one rank share.

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
        # If the rank's program is traced, these are called when an operation is issued, and when
        # the program waits for one. They get the position of the operation in this call.
        self.on_issue: Callable[[int], None] = lambda position: None
        self.on_wait: Callable[[int], None] = lambda position: None

    def ask(self, kind: bytes, content: dict, blob: bytes = b"") -> int:
        """Send an operation or a question, and return the number that its answer will have."""
        number = next(self.numbers)
        self.link.send(kind, {**self.current, "number": number, **content}, blob)
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
    # whether a tensor that the operation fills overlaps one that it sends, so that gloo sends some
    # entries after it has overwritten them
    is_overlapping: bool = False
    # the file and line that issued the operation; None if it fills no tensor
    unfilled_at: tuple | None = None
    was_left_open: bool = True  # False if a wait in the line ``unfilled_at`` ended the operation


class MemoryInUse:
    """The memory whose content an operation sends.

    A collective reads its memory at once. A send reads its memory when its rank next waits. So a
    program that overwrites the tensor of a send before this wait sends the new values.
    ``was_overwritten`` then says so, because the send has kept the hash of its memory before.
    """

    def __init__(self, sent: Tensors, landing: Tensors) -> None:
        self.sent, self.is_spoiled = list(sent), False
        self.size = sum(tensor.numel() * tensor.element_size() for tensor in sent)
        places = {tensor.untyped_storage().data_ptr() for tensor in landing}
        # An operation in place overwrites what it has sent, so there is nothing to compare later.
        self.is_in_place = any(tensor.untyped_storage().data_ptr() in places for tensor in sent)
        self.kept: int | None = None  # the hash of the bytes that the operation should send
        # whether the memory was overwritten before it was sent, or the program has freed it
        self.is_lost = False

    def _now(self) -> bytes:
        """Return the bytes, or zeros if the program has freed this memory."""
        if any(map(is_freed, self.sent)):
            self.is_lost = True
            return bytes(self.size)
        return b"".join(map(raw, self.sent))

    def keep(self) -> None:
        """Keep the hash of the bytes, for ``read`` and ``was_overwritten``.

        On a GPU keep nothing, because the program would then have to wait for the GPU.
        """
        if all(map(is_on_host, self.sent)):
            self.kept = hash(self._now())

    def read(self, keep: bool = True) -> bytes:
        """Return the bytes to send. With ``keep``, keep their hash for ``was_overwritten``."""
        blob = self._now()
        if self.is_spoiled:
            return combine.unfilled(blob, dtype_of(self.sent[0]))
        if self.kept is not None and self.kept != hash(blob):
            self.is_lost = True
        self.kept = hash(blob) if keep and not self.is_in_place else None
        return blob

    def spoil(self) -> None:
        """Make ``read`` return useless numbers from now on: NaN, or ``UNFILLED`` for integers.

        The memory belongs to the caller again from now on.
        """
        self.is_spoiled = True

    def was_overwritten(self) -> bool:
        """Return whether the memory was overwritten while the operation used it.

        There are three cases. The memory differs, or differed in ``read``, from the bytes whose
        hash was kept. Or another operation fills the memory before it is sent. Or the program has
        freed the memory.
        """
        differs = self.kept is not None and self.kept != hash(self._now())
        return differs or self.is_lost

    def note_landing(self, landing: Tensors) -> None:
        """Note that data is lost if an operation will fill memory that is still to be sent.

        ``landing`` are the tensors that the operation fills.
        """
        self.is_lost |= any(overlap(a, b) for a in self.sent for b in landing)


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
        waits = self.polls > PATIENT_POLLS and self.issued.kind != "recv"
        has = self.network.link.has(self.number, POLL_SECONDS if waits else 0.0)
        return has and self._take()

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
        if self.issued.kind in ("send", "recv"):  # gloo raises the same
            raise RuntimeError("getFuture not implemented.")
        if self.issued.kind == "reduce_scatter" and not self.network.is_strict:  # so does gloo
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


def dtype_of(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """Return the ``nbytes`` bytes of memory that begin at a tensor's first element.

    Raises RuntimeError if fewer bytes are left in the tensor's memory. Also raises RuntimeError for
    a view whose entries are negated or conjugated only when they are read.
    """
    if tensor.is_neg() or tensor.is_conj():
        raise RuntimeError(
            "a negated or conjugated view cannot be communicated: call resolve_neg() or"
            " resolve_conj() first"
        )
    flat = tensor.detach().as_strided((tensor.numel(),), (1,))
    return flat.view(torch.uint8) if flat.numel() else flat.new_empty(0, dtype=torch.uint8)


def overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether two tensors overlap in memory, if each is one block of ``nbytes`` bytes."""
    begins = max(a.data_ptr(), b.data_ptr())
    return begins < min(a.data_ptr() + a.nbytes, b.data_ptr() + b.nbytes)


def is_on_host(tensor: torch.Tensor) -> bool:
    """Return whether the tensor is in the CPU's memory, and not in a GPU's."""
    return tensor.device.type == "cpu"


def raw(tensor: torch.Tensor) -> bytes:
    """Return the bytes of a tensor's memory.

    Dispatch is disabled here and in ``write``. Otherwise a mode that watches the program would see
    each copy, and this takes longer than the copy itself. If the memory is a GPU's, wait
    until earlier operations of the GPU have computed the entries. Neither function calls
    ``numpy()``, because a program could then no longer free the tensor with ``resize_``.
    """
    with torch._C._DisableTorchDispatch():
        memory = _memory(tensor)
        memory = memory if is_on_host(tensor) else memory.cpu()
        return ctypes.string_at(memory.data_ptr(), memory.numel())


def write(tensor: torch.Tensor, content: np.ndarray) -> None:
    """Write bytes to a tensor's memory, as a backend in C++ does.

    torch refuses to write to an inference tensor outside of inference mode. Therefore on a CPU the
    bytes are copied to the tensor's address without torch. On a GPU they are copied in inference
    mode, on the current stream.
    """
    with torch._C._DisableTorchDispatch():
        if is_on_host(tensor):
            memory, found = _memory(tensor), np.ascontiguousarray(content)
            if memory.numel() != found.nbytes:
                raise ValueError(f"{found.nbytes} bytes for a tensor of {memory.numel()}")
            ctypes.memmove(memory.data_ptr(), found.ctypes.data, found.nbytes)
            return
        with torch.inference_mode():
            _memory(tensor).copy_(torch.from_numpy(content.copy()))


def fill(landing: Tensors, blob: bytes, in_order: bool) -> None:
    """Write the bytes of ``blob`` to the tensors' memory, one tensor after the other.

    With ``in_order``, write the bytes in the logical order of a tensor's entries. An empty blob
    changes nothing.
    """
    if not blob:
        return
    found, begin = np.frombuffer(blob, np.uint8), 0
    for tensor in landing:
        _lay(tensor, found[begin : begin + tensor.nbytes], in_order)
        begin += tensor.nbytes


def unfill(landing: Tensors, in_order: bool) -> None:
    """Fill the tensors of a pending operation with nan, or with ``UNFILLED`` for integers.

    Until somebody has waited for the operation, nobody may read these tensors.
    """
    for tensor in landing:
        empty = combine.unfilled(bytes(tensor.nbytes), dtype_of(tensor))
        _lay(tensor, np.frombuffer(empty, np.uint8), in_order)


def _lay(tensor: torch.Tensor, content: np.ndarray, in_order: bool) -> None:
    """Write bytes to a tensor's memory. With ``in_order``, write in the order of its entries."""
    if not in_order or tensor.is_contiguous():
        write(tensor, content)
        return
    # A backend in C++ copies in such a way that no meter sees it, and autograd counts no change.
    with torch._C._DisableTorchDispatch():
        laid = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        write(laid, content)
        tensor.data.copy_(laid)
