"""Part 3 · Data parallelism."""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from handout import mlp


def shard_batch(batch: Tensor) -> Tensor:
    n, rank = dist.get_world_size(), dist.get_rank()
    if batch.shape[0] % n != 0:
        raise ValueError(f"batch of {batch.shape[0]} does not divide by {n} ranks")
    rows = batch.shape[0] // n
    return batch[rank * rows : (rank + 1) * rows]


def broadcast_parameters(parameters: Iterable[Tensor], root: int = 0) -> None:
    n = dist.get_world_size()
    if root < 0 or root >= n:
        raise ValueError(f"root {root} is not one of the {n} ranks")
    for parameter in parameters:
        buffer = parameter.detach().clone(memory_format=torch.contiguous_format)
        dist.broadcast(buffer, src=root)
        with torch.no_grad():
            parameter.copy_(buffer)


def data_parallel_step(weights: list[Tensor], shard: Tensor) -> tuple[Tensor, list[Tensor]]:
    leaves = [weight.detach().clone().requires_grad_() for weight in weights]
    loss = mlp.loss(mlp.forward(leaves, shard))
    loss.backward()
    gradients = []
    for leaf in leaves:
        gradient = leaf.grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(gradient)
        gradients.append(gradient / dist.get_world_size())
    return loss.detach(), gradients


def train(
    weights: list[Tensor], shards: list[Tensor], lr: float = 1e-3
) -> tuple[Tensor, torch.optim.AdamW]:
    optimizer = torch.optim.AdamW(weights, lr=lr)
    losses = torch.zeros(len(shards), dtype=weights[0].dtype, device=weights[0].device)
    for i, shard in enumerate(shards):
        loss, gradients = data_parallel_step(weights, shard)
        dist.all_reduce(loss)
        losses[i] = loss / dist.get_world_size()
        for weight, gradient in zip(weights, gradients):
            weight.grad = gradient
        optimizer.step()
    return losses, optimizer


class GradientBuckets:
    def __init__(self, parameters: Iterable[Tensor], bucket_bytes: int) -> None:
        if bucket_bytes <= 0:
            raise ValueError(f"bucket_bytes must be positive, not {bucket_bytes}")
        unique = []
        for parameter in parameters:
            if parameter.requires_grad and not any(parameter is other for other in unique):
                unique.append(parameter)

        self.buckets = []
        bucket, size = [], 0
        for parameter in reversed(unique):
            nbytes = parameter.numel() * parameter.element_size()
            if bucket and size + nbytes > bucket_bytes:
                self.buckets.append(bucket)
                bucket, size = [], 0
            bucket.append(parameter)
            size += nbytes
        if bucket:
            self.buckets.append(bucket)

        self.ready = set()  # ids of the parameters whose gradient has arrived in this pass
        self.started = []  # (flat, work) of every bucket under way
        for parameter in unique:
            parameter.register_post_accumulate_grad_hook(self.hook)

    def hook(self, parameter):
        self.ready.add(id(parameter))
        while len(self.started) < len(self.buckets):
            bucket = self.buckets[len(self.started)]
            if not all(id(p) in self.ready for p in bucket):
                break
            self.start(bucket)

    def start(self, bucket):
        pieces = []
        for parameter in bucket:
            if parameter.grad is None:
                pieces.append(
                    torch.zeros(parameter.numel(), dtype=parameter.dtype, device=parameter.device)
                )
            else:
                pieces.append(parameter.grad.detach().reshape(-1))
        flat = torch.cat(pieces)
        work = dist.all_reduce(flat, async_op=True)
        self.started.append((flat, work))

    def wait(self) -> None:
        while len(self.started) < len(self.buckets):
            self.start(self.buckets[len(self.started)])
        for bucket, (flat, work) in zip(self.buckets, self.started):
            work.wait()
            flat = flat / dist.get_world_size()
            offset = 0
            for parameter in bucket:
                piece = flat[offset : offset + parameter.numel()].reshape(parameter.shape)
                offset += parameter.numel()
                parameter.grad = piece.clone()
        self.ready = set()
        self.started = []
