"""Part 3 · Data parallelism, functionally and with overlap."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import Tensor

from handout import mlp


def shard_batch(batch: Tensor) -> Tensor:
    n = dist.get_world_size()
    if batch.size(0) % n:
        raise ValueError(f"batch of {batch.size(0)} does not divide by {n} ranks")
    return batch.tensor_split(n)[dist.get_rank()]


def broadcast_parameters(parameters: Iterable[Tensor], root: int = 0) -> None:
    """All parameters, whatever their dtypes, as one message of bytes."""
    if root not in range(n := dist.get_world_size()):
        raise ValueError(f"root is {root}, but the ranks are 0 to {n - 1}")
    targets = [parameter.detach() for parameter in parameters]  # the same memory, outside autograd
    if not targets:
        return
    pieces = [target.contiguous().view(-1).view(torch.uint8) for target in targets]
    received = funcol.wait_tensor(funcol.broadcast(torch.cat(pieces), root, dist.group.WORLD))
    if dist.get_rank() == root:
        return
    for target, piece in zip(targets, received.split([piece.numel() for piece in pieces])):
        # the clone begins where its dtype may begin; its offset among the bytes need not
        target.copy_(piece.clone().view(target.dtype).view(target.shape))


def data_parallel_step(weights: list[Tensor], shard: Tensor) -> tuple[Tensor, list[Tensor]]:
    def objective(leaves: list[Tensor]) -> Tensor:
        return mlp.loss(mlp.forward(leaves, shard.detach()))

    local, loss = torch.func.grad_and_value(objective)([weight.detach() for weight in weights])
    totals = funcol.all_reduce_coalesced([g.contiguous() for g in local], "sum", dist.group.WORLD)
    gradients = [funcol.wait_tensor(total) for total in totals]
    torch._foreach_div_(gradients, dist.get_world_size())
    return loss, gradients


def train(
    weights: list[Tensor], shards: list[Tensor], lr: float = 1e-3
) -> tuple[Tensor, torch.optim.AdamW]:
    n = dist.get_world_size()
    optimizer = torch.optim.AdamW(weights, lr=lr)
    leaves = [
        weight.detach().requires_grad_() for weight in weights
    ]  # the memory of the weights, with a tape of its own
    buckets = GradientBuckets(leaves, bucket_bytes=1 << 16)
    losses = torch.zeros(len(shards), dtype=torch.float64, device=weights[0].device)
    # The losses have a group and a thread of their own, and hold up nothing.
    aside = dist.new_group()
    try:
        with ThreadPoolExecutor(max_workers=1) as pool:
            pending = []
            for step, shard in enumerate(shards):
                with torch.enable_grad():
                    loss = mlp.loss(mlp.forward(leaves, shard))
                losses[step] = loss.detach()
                pending.append(pool.submit(dist.all_reduce, losses[step], group=aside))
                loss.backward()
                buckets.wait()
                for weight, leaf in zip(weights, leaves):
                    weight.grad, leaf.grad = leaf.grad, None
                optimizer.step()
            for future in pending:
                future.result()
        dist.barrier()  # nobody leaves the group under another's feet
    finally:
        buckets.remove()
        dist.destroy_process_group(aside)
    return losses.div_(n).to(weights[0].dtype), optimizer


class GradientBuckets:
    """Tensor hooks, which see a gradient before it is accumulated; one flat tensor a bucket and
    pass.
    """

    def __init__(self, parameters: Iterable[Tensor], bucket_bytes: int) -> None:
        if bucket_bytes <= 0:
            raise ValueError(f"bucket_bytes is {bucket_bytes}, but must be positive")
        self._buckets: list[list[Tensor]] = []
        self._place: dict[Tensor, tuple[int, slice]] = {}
        self._sizes: list[int] = []
        room = -1
        for parameter in reversed(dict.fromkeys(p for p in parameters if p.requires_grad)):
            if not self._buckets or parameter.nbytes > room:
                self._buckets.append([])
                self._sizes.append(0)
                room = bucket_bytes
            start = self._sizes[-1]
            self._place[parameter] = len(self._buckets) - 1, slice(start, start + parameter.numel())
            self._buckets[-1].append(parameter)
            self._sizes[-1] += parameter.numel()
            room -= parameter.nbytes
        self._handles = [p.register_hook(partial(self._collect, p)) for p in self._place]
        self._reset()

    def _reset(self) -> None:
        self._flats: list[Tensor | None] = [None] * len(self._buckets)
        self._missing: list[set[Tensor]] = [set(bucket) for bucket in self._buckets]
        self._futures: list[torch.futures.Future] = []

    @torch.no_grad()
    def _put(self, parameter: Tensor, gradient: Tensor | None) -> None:
        index, where = self._place[parameter]
        if self._flats[index] is None:
            self._flats[index] = torch.zeros(
                self._sizes[index], dtype=parameter.dtype, device=parameter.device
            )
        target = self._flats[index][where].view(parameter.shape)
        if parameter.grad is not None:  # what the pass is going to add to
            target.copy_(parameter.grad)
        if gradient is not None:
            target.add_(gradient)
        self._missing[index].discard(parameter)

    def _collect(self, parameter: Tensor, gradient: Tensor) -> None:
        self._put(parameter, gradient)
        self._advance()

    def _advance(self) -> None:
        """Start, in their order, the buckets that lack nothing."""
        while (index := len(self._futures)) < len(self._buckets) and not self._missing[index]:
            self._futures.append(dist.all_reduce(self._flats[index], async_op=True).get_future())

    @torch.no_grad()
    def wait(self) -> None:
        for missing in self._missing:
            for parameter in list(missing):
                self._put(parameter, None)
        self._advance()
        torch.futures.wait_all(self._futures)
        averages = torch._foreach_div(self._flats, dist.get_world_size()) if self._flats else []
        for parameter, (index, where) in self._place.items():
            average = averages[index][where].view(parameter.shape)
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)
            parameter.grad.copy_(average)
        self._reset()

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
