import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx

from handout import mlp


def shard_columns(weight: Tensor) -> Tensor:
    n = dist.get_world_size()
    rank = dist.get_rank()
    columns = weight.shape[1]
    if columns % n != 0:
        raise ValueError(f"{columns} columns do not divide by {n} ranks")
    size = columns // n
    return weight[:, rank * size : (rank + 1) * size].contiguous().clone()


def shard_rows(weight: Tensor) -> Tensor:
    n = dist.get_world_size()
    rank = dist.get_rank()
    rows = weight.shape[0]
    if rows % n != 0:
        raise ValueError(f"{rows} rows do not divide by {n} ranks")
    size = rows // n
    return weight[rank * size : (rank + 1) * size].contiguous().clone()


def check(shards, x):
    n = dist.get_world_size()
    width = x.shape[1]
    for shard in shards:
        if shard.shape[0] != width:
            raise ValueError(f"a shard has {shard.shape[0]} rows, but x has {width} columns")
        if shard.shape[1] * n != width:
            raise ValueError(
                f"{n} shards of {shard.shape[1]} columns do not make a weight of ({width}, {width})"
            )


def tensor_parallel_forward(
    shards: list[Tensor], x: Tensor
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    check(shards, x)
    n = dist.get_world_size()
    saved = []
    for shard in shards:
        mine, z = mlp.layer_forward(x, shard)
        saved.append((x, z))
        mine = mine.contiguous()
        parts = []
        for _ in range(n):
            parts.append(torch.empty(mine.shape, dtype=mine.dtype, device=mine.device))
        dist.all_gather(parts, mine)
        x = torch.cat(parts, dim=1)
    return x, saved


def tensor_parallel_backward(
    shards: list[Tensor], saved: list[tuple[Tensor, Tensor]], grad_y: Tensor
) -> tuple[Tensor, list[Tensor]]:
    check(shards, grad_y)
    n = dist.get_world_size()
    rank = dist.get_rank()
    size = grad_y.shape[1] // n
    if len(shards) == 0:
        return grad_y.clone(), []
    grad = grad_y[:, rank * size : (rank + 1) * size]
    gradients = []
    for layer in range(len(shards) - 1, -1, -1):
        x, z = saved[layer]
        term, grad_weight = mlp.layer_backward(x, z, shards[layer], grad)
        gradients.insert(0, grad_weight)
        if layer > 0:
            parts = []
            for r in range(n):
                parts.append(term[:, r * size : (r + 1) * size].contiguous())
            grad = torch.empty(parts[rank].shape, dtype=term.dtype, device=term.device)
            dist.reduce_scatter(grad, parts)
    grad_x = term.contiguous()
    dist.all_reduce(grad_x)
    return grad_x, gradients


class CopyToRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: FunctionCtx, grad_y: Tensor) -> Tensor:
        grad_x = grad_y.contiguous().clone()
        dist.all_reduce(grad_x)
        return grad_x


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> Tensor:
        y = x.contiguous().clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx: FunctionCtx, grad_y: Tensor) -> Tensor:
        return grad_y


def megatron_pair(column: Tensor, row: Tensor, x: Tensor) -> Tensor:
    if x.shape[1] != column.shape[0]:
        raise ValueError(f"x has {x.shape[1]} columns, but column has {column.shape[0]} rows")
    if column.shape[1] != row.shape[0]:
        raise ValueError(f"column has {column.shape[1]} columns, but row has {row.shape[0]} rows")
    hidden = F.gelu(CopyToRanks.apply(x) @ column)
    return F.gelu(SumOverRanks.apply(hidden @ row))
