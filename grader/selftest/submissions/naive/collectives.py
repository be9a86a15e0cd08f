"""Part 1 · Collectives."""

from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")

OPS = {
    "sum": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "product": dist.ReduceOp.PRODUCT,
}


def check_root(root):
    n = dist.get_world_size()
    if root < 0 or root >= n:
        raise ValueError(f"root {root} is not one of the {n} ranks")


def check_op(op, tensor):
    if not isinstance(op, str) or op != "average" and op not in OPS:
        raise ValueError(f"unknown op {op!r}, must be one of sum, max, min, product, average")
    if op == "average" and not tensor.is_floating_point():
        raise ValueError(f"cannot average integers ({tensor.dtype})")


def check_divides(tensor):
    n = dist.get_world_size()
    if tensor.dim() == 0 or tensor.shape[0] % n != 0:
        raise ValueError(
            f"first dimension of shape {tuple(tensor.shape)} does not divide by {n} ranks"
        )


def copy_of(tensor):
    """A contiguous copy that is always new memory."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def broadcast(tensor: Tensor, root: int) -> Tensor:
    check_root(root)
    result = copy_of(tensor)
    dist.broadcast(result, src=root)
    return result


def scatter(tensor: Tensor | None, like: Tensor, root: int) -> Tensor:
    check_root(root)
    n = dist.get_world_size()
    if like.dim() == 0:
        raise ValueError(f"like has no dimension 0, its shape is {tuple(like.shape)}")
    blocks = None
    if dist.get_rank() == root:
        expected = (n * like.shape[0], *like.shape[1:])
        if tensor is None:
            raise ValueError(f"root {root} has no tensor to scatter to {n} ranks")
        if tuple(tensor.shape) != expected:
            raise ValueError(
                f"tensor of shape {tuple(tensor.shape)} does not hold {n} blocks of"
                f" {tuple(like.shape)}"
            )
        k = like.shape[0]
        blocks = [copy_of(tensor[i * k : (i + 1) * k]) for i in range(n)]
    result = torch.empty(like.shape, dtype=like.dtype, device=like.device)
    dist.scatter(result, blocks, src=root)
    return result


def gather(tensor: Tensor, root: int) -> Tensor | None:
    check_root(root)
    if tensor.dim() == 0:
        raise ValueError(f"tensor has no dimension 0: it has {tensor.dim()} dimensions")
    mine = copy_of(tensor)
    if dist.get_rank() == root:
        parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
        dist.gather(mine, parts, dst=root)
        return torch.cat(parts)
    dist.gather(mine, dst=root)
    return None


def reduce(tensor: Tensor, root: int, op: str = "sum") -> Tensor | None:
    check_root(root)
    check_op(op, tensor)
    result = copy_of(tensor)
    dist.reduce(result, dst=root, op=OPS["sum" if op == "average" else op])
    if dist.get_rank() != root:
        return None
    if op == "average":
        result = result / dist.get_world_size()
    return result


def all_gather(tensor: Tensor) -> Tensor:
    if tensor.dim() == 0:
        raise ValueError(f"tensor has no dimension 0: it has {tensor.dim()} dimensions")
    mine = copy_of(tensor)
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, mine)
    return torch.cat(parts)


def reduce_scatter(tensor: Tensor, op: str = "sum") -> Tensor:
    check_divides(tensor)
    check_op(op, tensor)
    n = dist.get_world_size()
    k = tensor.shape[0] // n
    blocks = [copy_of(tensor[i * k : (i + 1) * k]) for i in range(n)]
    result = torch.empty_like(blocks[0])
    dist.reduce_scatter(result, blocks, op=OPS["sum" if op == "average" else op])
    if op == "average":
        result = result / n
    return result


def all_reduce(tensor: Tensor, op: str = "sum") -> Tensor:
    check_op(op, tensor)
    result = copy_of(tensor)
    dist.all_reduce(result, op=OPS["sum" if op == "average" else op])
    if op == "average":
        result = result / dist.get_world_size()
    return result


def all_to_all(tensor: Tensor) -> Tensor:
    check_divides(tensor)
    n = dist.get_world_size()
    k = tensor.shape[0] // n
    blocks = [copy_of(tensor[i * k : (i + 1) * k]) for i in range(n)]
    received = [torch.empty_like(block) for block in blocks]
    dist.all_to_all(received, blocks)
    return torch.cat(received)


def in_rank_order(action: Callable[[], T]) -> T:
    result = None
    for turn in range(dist.get_world_size()):
        if turn == dist.get_rank():
            result = action()
        dist.barrier()
    return result


def all_reduce_from_parts(tensor: Tensor) -> Tensor:
    n = dist.get_world_size()
    flat = copy_of(tensor).reshape(-1)
    size = (flat.numel() + n - 1) // n
    padded = torch.zeros(n * size, dtype=flat.dtype, device=flat.device)
    padded[: flat.numel()] = flat
    total = all_gather(reduce_scatter(padded))
    return total[: flat.numel()].reshape(tensor.shape)


def average(tensor: Tensor) -> Tensor:
    if not tensor.is_floating_point():
        raise ValueError(f"average needs a float dtype, not {tensor.dtype}")
    result = copy_of(tensor)
    dist.all_reduce(result)
    return result / dist.get_world_size()


def overlapped_all_reduce(tensor: Tensor, compute: Callable[[], T]) -> tuple[Tensor, T]:
    total = copy_of(tensor)
    work = dist.all_reduce(total, async_op=True)
    result = compute()
    work.wait()
    return total, result


def shift_right(tensor: Tensor) -> Tensor:
    n, rank = dist.get_world_size(), dist.get_rank()
    mine = copy_of(tensor)
    if n == 1:
        return mine
    right, left = (rank + 1) % n, (rank - 1) % n
    result = torch.empty_like(mine)
    if rank % 2 == 0:
        dist.send(mine, right)
        dist.recv(result, left)
    else:
        dist.recv(result, left)
        dist.send(mine, right)
    return result


def ring_all_reduce(tensor: Tensor) -> Tensor:
    n, rank = dist.get_world_size(), dist.get_rank()
    flat = copy_of(tensor).reshape(-1)
    size = (flat.numel() + n - 1) // n
    padded = torch.zeros(n * size, dtype=flat.dtype, device=flat.device)
    padded[: flat.numel()] = flat
    chunks = [padded[i * size : (i + 1) * size].clone() for i in range(n)]
    # reduce-scatter: in the end this rank holds the finished chunk rank + 1
    for step in range(n - 1):
        received = shift_right(chunks[(rank - step) % n])
        chunks[(rank - step - 1) % n] += received
    # all-gather
    for step in range(n - 1):
        received = shift_right(chunks[(rank + 1 - step) % n])
        chunks[(rank - step) % n] = received
    return torch.cat(chunks)[: flat.numel()].reshape(tensor.shape)
