"""This module checks the tensors that student code gives to an operation of a group on the hub.

It runs beside student code. Wrong arguments raise the same errors as with gloo, or as with nccl if
the tensors are on a GPU. The hub also refuses some operations that gloo carries out. The texts of
these errors say so.
"""

import torch

from grader.rank.tensor_memory import Tensors, dtype_of, is_on_host
from grader.wire import combine, frames


def check_operation(
    kind: str, sent: Tensors, landing: Tensors, in_order: bool, reduction: str | None
) -> None:
    """Check that the hub can carry out an operation on these tensors.

    The arguments are those of ``HubGroup._issue``. ``reduction`` is None if the operation reduces
    nothing. Raises ValueError or RuntimeError if the hub cannot carry out the operation.
    """
    tensors = [*sent, *landing]
    require_dense(kind, tensors)
    if not all(is_on_host(x) or x.is_contiguous() for x in tensors):
        raise ValueError("Tensors must be contiguous")  # the words of nccl
    require_room(kind, sent, landing)
    check_tensors(kind, tensors, in_order)
    if sent and reduction:
        _require_reducible(kind, sent[0], reduction)


def require_room(kind: str, sent: Tensors, landing: Tensors) -> None:
    """Raise ValueError if an operation sends or fills more bytes than the hub carries at a time."""
    for tensors, verb in ((sent, "sends"), (landing, "receives")):
        if (total := sum(tensor.nbytes for tensor in tensors)) > frames.MAX_BLOB:
            raise ValueError(
                f"{kind}: this rank {verb} {total / 2**20:.1f} MiB at a time. The network of the"
                f" checks carries at most {frames.MAX_BLOB >> 20} MiB"
            )


def require_dense(kind: str, tensors: Tensors) -> None:
    """Raise ValueError if a tensor is sparse, or has another layout than a strided one."""
    if any(tensor.layout != torch.strided for tensor in tensors):
        raise ValueError(f"{kind}: only dense tensors can be communicated")


def check_tensors(kind: str, tensors: Tensors, in_order: bool) -> None:
    """Check the memory and the dtype of each tensor, and that all dtypes are the same.

    Raises RuntimeError if a message is not contiguous, as gloo does. Raises ValueError for all
    other faults. If ``in_order`` is True, the hub gets a copy of each tensor, so the tensor may be
    an expanded one.
    """
    for tensor in tensors:
        if kind in ("send", "recv") and not tensor.is_contiguous():
            raise RuntimeError("input tensor has to be contiguous")  # gloo's words for both kinds
        if not in_order and _last(tensor) > tensor.untyped_storage().nbytes():
            raise ValueError(
                f"{kind}: the tensor has more elements than its memory can hold. Was it expanded,"
                " or was its memory freed?"
            )
        if dtype_of(tensor) not in combine.ITEMSIZES:
            raise ValueError(f"{kind}: tensors of {tensor.dtype} cannot be communicated")
    if len({tensor.dtype for tensor in tensors}) > 1:
        raise ValueError(f"{kind}: the tensors differ in their dtype")


def _require_reducible(kind: str, tensor: torch.Tensor, reduction: str) -> None:
    """Raise RuntimeError, as gloo does, if this reduction of the tensors cannot be carried out."""
    if combine.can_reduce(dtype_of(tensor), reduction):
        return
    op = f"ReduceOp.{reduction.upper()}"
    if reduction not in combine.REDUCTIONS:
        raise RuntimeError(f"{kind}: the checks do not support {op}")
    raise RuntimeError(f"{kind}: cannot use {op} with tensors of {tensor.dtype}")


def check_list(kind: str, tensors: Tensors, n: int, like: torch.Tensor | None = None) -> None:
    """Check that a list has ``n`` tensors, each with the shape of ``like``.

    Otherwise raise RuntimeError, as gloo does before it sends anything. If ``like`` is not given,
    do not check the shapes.
    """
    if len(tensors) != n:
        raise RuntimeError(
            f"{kind}: the list must have one tensor for each of the {n} ranks, and has"
            f" {len(tensors)}"
        )
    for i, tensor in enumerate(tensors):
        if like is not None and tensor.shape != like.shape:
            raise RuntimeError(
                f"{kind}: invalid tensor size at index {i} of the list (expected"
                f" {tuple(like.shape)}, got {tuple(tensor.shape)})"
            )


def check_shape(kind: str, name: str, whole: torch.Tensor, part: torch.Tensor, n: int) -> None:
    """Check that a tensor has the shape of ``n`` parts that are joined along dimension 0.

    If not, raise RuntimeError as gloo does.
    """
    due = (n * part.shape[0], *part.shape[1:]) if part.dim() else None
    if tuple(whole.shape) != due:
        raise RuntimeError(
            f"{kind}: the {name} has the shape {tuple(whole.shape)}. With gloo, {n} ranks with"
            f" {tuple(part.shape)} each need"
            f" {due or 'tensors with at least one dimension'}"
        )


def check_count(kind: str, name: str, whole: torch.Tensor, part: torch.Tensor, n: int) -> None:
    """Check that a tensor has as many elements as ``n`` parts.

    If not, raise RuntimeError as nccl does.
    """
    if whole.numel() != n * part.numel():
        raise RuntimeError(
            f"{kind}: the {name} has {whole.numel()} elements, but {n} ranks with"
            f" {part.numel()} each need {n * part.numel()}"
        )


def _last(tensor: torch.Tensor) -> int:
    """Return the byte offset in the storage at which the tensor would end if it were contiguous."""
    return (int(tensor.storage_offset()) + tensor.numel()) * tensor.element_size()
