"""This module reads and writes the memory of tensors that operations on the hub communicate.

It runs beside student code.
"""

import ctypes
from collections.abc import Sequence

import numpy as np
import torch

from grader.rank.tensors import is_freed
from grader.wire import combine

Tensors = Sequence[torch.Tensor]


class MemoryInUse:
    """The memory whose content an operation sends.

    A collective reads its memory immediately. A send reads its memory when its rank next waits. So
    a program that overwrites the tensor of a send before this wait sends the new values. On a CPU,
    ``was_overwritten`` then returns True, because ``keep`` has kept the hash of the bytes. On a
    GPU, ``was_overwritten`` notices only changes after ``read``, and operations that fill the
    memory.
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

        On a GPU, keep nothing. Otherwise the program would have to wait for the GPU.
        """
        if all(map(is_on_host, self.sent)):
            self.kept = hash(self._now())

    def read(self, keep: bool = True) -> bytes:
        """Return the bytes to send, and record whether they have changed since the last hash.

        If the argument ``keep`` is True, keep the new hash for ``was_overwritten``. Otherwise
        forget the hash.
        """
        blob = self._now()
        if self.is_spoiled:
            return combine.unfilled(blob, dtype_of(self.sent[0]))
        if self.kept is not None and self.kept != hash(blob):
            self.is_lost = True
        self.kept = hash(blob) if keep and not self.is_in_place else None
        return blob

    def spoil(self) -> None:
        """Make ``read`` return useless numbers from now on: NaN, or ``UNFILLED`` for integers.

        Call this if the caller may use the memory again, but its bytes have not been sent yet.
        """
        self.is_spoiled = True

    def was_overwritten(self) -> bool:
        """Return whether the memory was overwritten while the operation used it.

        Return True in three cases: the bytes have changed since their hash was kept (now, or at the
        time of ``read``), another operation fills the memory before the bytes are sent, or the
        program has freed the memory.
        """
        differs = self.kept is not None and self.kept != hash(self._now())
        return differs or self.is_lost

    def note_landing(self, landing: Tensors) -> None:
        """Note that data is lost if an operation will fill memory that is still to be sent.

        ``landing`` are the tensors that the operation fills.
        """
        self.is_lost |= any(overlap(a, b) for a in self.sent for b in landing)


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
    """Return whether two tensors overlap in memory.

    Each tensor must be one block of ``nbytes`` bytes.
    """
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

    If ``in_order`` is True, write the bytes in the logical order of a tensor's entries. An empty
    blob changes nothing.
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
    """Write bytes to a tensor's memory; if ``in_order`` is True, in the order of its entries."""
    if not in_order or tensor.is_contiguous():
        write(tensor, content)
        return
    # A backend in C++ copies in such a way that no meter sees it, and autograd counts no change.
    with torch._C._DisableTorchDispatch():
        laid = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
        write(laid, content)
        tensor.data.copy_(laid)
