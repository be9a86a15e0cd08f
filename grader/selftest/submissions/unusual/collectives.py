"""Part 1 · Collectives, by functional, single-tensor and asynchronous forms."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
import torch.distributed.nn.functional as distnn
from torch import Tensor

T = TypeVar("T")

OPS = {
    "sum": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "product": dist.ReduceOp.PRODUCT,
}


# --- checks
# ----------------------------------------------------------------------------------------------------------


def _world() -> dist.ProcessGroup:
    return dist.group.WORLD


def _valid_root(root: int) -> None:
    if root not in range(n := dist.get_world_size()):
        raise ValueError(f"root is {root}, but the ranks are 0 to {n - 1}")


def _split_op(op: str, dtype: torch.dtype) -> tuple[str, int]:
    """The op that is sent, and what its result is divided by."""
    if op == "average":
        if not dtype.is_floating_point:
            raise ValueError(f"the average of {dtype} is not an integer")
        return "sum", dist.get_world_size()
    if op not in [*OPS]:  # a list is in no dict
        raise ValueError(f"op is {op!r}, but must be one of {[*OPS, 'average']}")
    return op, 1


def _has_rows(tensor: Tensor) -> None:
    if tensor.ndim < 1:
        raise ValueError(f"needs at least 1 dimension, got {tensor.ndim}")


def _rows_divide(tensor: Tensor) -> int:
    _has_rows(tensor)
    k, rest = divmod(tensor.size(0), n := dist.get_world_size())
    if rest:
        raise ValueError(f"{tensor.size(0)} rows do not divide by {n} ranks")
    return k


def _packed(tensor: Tensor) -> Tensor:
    """Contiguous and outside autograd, perhaps the caller's own memory: only for calls that do not
    write to it.
    """
    return tensor.detach().contiguous()


def _fresh(tensor: Tensor) -> Tensor:
    """Contiguous, outside autograd, and ours."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device).copy_(
        tensor.detach()
    )


def _divided(tensor: Tensor, divisor: int) -> Tensor:
    return tensor if divisor == 1 else tensor.div_(divisor)


def _poll(work: dist.Work) -> None:
    while not work.is_completed():
        time.sleep(5e-5)
    work.wait()  # completed, but perhaps by an error, which this raises


# --- 1.1
# -------------------------------------------------------------------------------------------------------------


def broadcast(tensor: Tensor, root: int) -> Tensor:
    _valid_root(root)
    return funcol.wait_tensor(funcol.broadcast(_packed(tensor), root, _world()))


def scatter(tensor: Tensor | None, like: Tensor, root: int) -> Tensor:
    _valid_root(root)
    _has_rows(like)
    n = dist.get_world_size()
    blocks = None
    if dist.get_rank() == root:
        if tensor is None or tensor.shape != (n * like.size(0), *like.shape[1:]):
            got = None if tensor is None else tuple(tensor.shape)
            raise ValueError(f"root {root} holds {got}, not {n} blocks of {tuple(like.shape)}")
        blocks = list(_packed(tensor).unflatten(0, (n, like.size(0))).unbind(0))
    out = torch.empty(like.shape, dtype=like.dtype, device=like.device)
    _poll(dist.scatter(out, blocks, src=root, async_op=True))
    return out


def gather(tensor: Tensor, root: int) -> Tensor | None:
    _valid_root(root)
    _has_rows(tensor)
    out = None
    if dist.get_rank() == root:
        out = torch.empty(
            dist.get_world_size(), *tensor.shape, dtype=tensor.dtype, device=tensor.device
        )
    work = dist.gather(
        _packed(tensor), None if out is None else list(out.unbind(0)), dst=root, async_op=True
    )
    work.get_future().wait()
    return None if out is None else out.flatten(0, 1)


def reduce(tensor: Tensor, root: int, op: str = "sum") -> Tensor | None:
    _valid_root(root)
    sent, divisor = _split_op(op, tensor.dtype)
    reduced = distnn.reduce(_packed(tensor), root, OPS[sent], _world())  # copies before it reduces
    return _divided(reduced, divisor) if dist.get_rank() == root else None


def all_gather(tensor: Tensor) -> Tensor:
    _has_rows(tensor)
    return funcol.wait_tensor(funcol.all_gather_single(_packed(tensor), 0, _world()))


def reduce_scatter(tensor: Tensor, op: str = "sum") -> Tensor:
    k = _rows_divide(tensor)
    sent, divisor = _split_op(op, tensor.dtype)
    out = torch.empty(k, *tensor.shape[1:], dtype=tensor.dtype, device=tensor.device)
    # gloo may use its input as a workspace
    dist.reduce_scatter_tensor(out, _fresh(tensor), op=OPS[sent], async_op=True).wait()
    return _divided(out, divisor)


def all_reduce(tensor: Tensor, op: str = "sum") -> Tensor:
    sent, divisor = _split_op(op, tensor.dtype)
    (reduced,) = funcol.all_reduce_coalesced([_packed(tensor)], sent, _world())
    return _divided(funcol.wait_tensor(reduced), divisor)


def all_to_all(tensor: Tensor) -> Tensor:
    k = _rows_divide(tensor)
    sizes = [k] * dist.get_world_size()
    return funcol.wait_tensor(funcol.all_to_all_single(_packed(tensor), sizes, sizes, _world()))


# --- 1.2 to 1.5
# ------------------------------------------------------------------------------------------------------


def in_rank_order(action: Callable[[], T]) -> T:
    outcome, failure = None, None
    for turn in range(dist.get_world_size()):
        if turn == dist.get_rank():
            try:
                outcome = action()
            except BaseException as error:  # the others still get their turn
                failure = error
        _poll(dist.barrier(async_op=True))
    if failure is not None:
        raise failure
    return outcome


def all_reduce_from_parts(tensor: Tensor) -> Tensor:
    n, count = dist.get_world_size(), tensor.numel()
    flat = torch.nn.functional.pad(_fresh(tensor).flatten(), (0, -count % n))
    part = flat.new_empty(flat.numel() // n)
    dist.reduce_scatter_single(part, flat, async_op=True).wait()
    whole = torch.empty_like(flat)
    _poll(dist.all_gather_single(whole, part, async_op=True))
    return whole[:count].view(tensor.shape)


def average(tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        raise ValueError(f"average of {tensor.dtype}: needs a float dtype")
    total = _fresh(tensor).double()  # the rounded quotient of a float64 sum is the nearest float32
    dist.all_reduce(total, async_op=True).get_future().wait()
    return total.div(dist.get_world_size()).to(tensor.dtype)


def overlapped_all_reduce(tensor: Tensor, compute: Callable[[], T]) -> tuple[Tensor, T]:
    total, under_way = _fresh(tensor), threading.Event()

    def communicate() -> Tensor:
        try:
            work = dist.all_reduce(total, async_op=True)
        finally:
            under_way.set()
        work.wait()
        return total

    with ThreadPoolExecutor(max_workers=1) as pool:
        pending = pool.submit(communicate)
        under_way.wait()
        result = compute()
        return pending.result(), result


# --- 1.6 and 1.7
# -----------------------------------------------------------------------------------------------------


def _exchange(outgoing: Tensor, incoming: Tensor) -> None:
    """To the right and from the left at once; an empty tensor is not sent."""
    n, rank = dist.get_world_size(), dist.get_rank()
    operations = []
    if incoming.numel():
        operations.append(dist.P2POp(dist.irecv, incoming, (rank - 1) % n))
    if outgoing.numel():
        operations.append(dist.P2POp(dist.isend, outgoing, (rank + 1) % n))
    for work in dist.batch_isend_irecv(operations) if operations else []:
        work.wait()


def shift_right(tensor: Tensor) -> Tensor:
    if dist.get_world_size() == 1:
        return tensor
    incoming = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    _exchange(_packed(tensor), incoming)
    return incoming


def ring_all_reduce(tensor: Tensor) -> Tensor:
    n, rank = dist.get_world_size(), dist.get_rank()
    total = _fresh(tensor)
    chunks = total.view(-1).tensor_split(n)  # views, of at most ceil(elements / n) elements each
    # Chunk c starts its sums on rank c + 1 and ends them on rank c.
    for step in range(1, n):
        own = chunks[(rank - step - 1) % n]
        incoming = torch.empty_like(own)
        _exchange(chunks[(rank - step) % n], incoming)
        own.add_(incoming)
    for step in range(n - 1):
        _exchange(chunks[(rank - step) % n], chunks[(rank - step - 1) % n])
    return total
