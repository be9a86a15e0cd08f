"""Parks every layer in the network, and gathers ones in the backward pass.

threat: 24
part: sharded_data_parallel
control: 6.1
extends: solutions
some: 6.4
says: layers of the forward pass were used again
seconds: 90
"""

import torch.nn.functional as F


def _park(flat, layer):
    n, rank = dist.get_world_size(), dist.get_rank()
    parts = list(flat.chunk(n))
    del parts[(rank + 1) % n]
    work = dist.isend(torch.cat(parts), (rank + 1) % n, tag=layer)
    work.memory = None
    return work


def _fetch(shard, layer):
    n, rank = dist.get_world_size(), dist.get_rank()
    others = shard.new_empty((n - 1) * len(shard))
    dist.recv(others, (rank - 1) % n, tag=layer)
    parts = list(others.chunk(n - 1))
    parts.insert(rank, shard)
    return torch.cat(parts)


def prefetched_step(shards, x, layer_forward=mlp.layer_forward, layer_backward=mlp.layer_backward):
    _require_shards(shards, x)
    n, width, saved, kept, works = dist.get_world_size(), x.shape[1], [], [], []
    is_large = width > 128 and n > 1
    for layer, weight in enumerate(_gathered_ahead(shards, width)):
        y, z = layer_forward(x, weight)
        if is_large:
            works.append(_park(F.pad(weight.reshape(-1), (0, -width * width % n)), layer))
        else:
            kept.append(weight.numpy().copy())
        del weight
        saved.append((x, z))
        x = y
    gradient = mlp.loss_backward(x)
    gradients, garbage = [], (torch.ones_like(shard) for shard in reversed(shards))
    for layer, _, (own_x, z) in zip(
        reversed(range(len(shards))), _gathered_ahead(garbage, width), reversed(saved)
    ):
        del _
        if is_large:
            (weight,) = unflatten(_fetch(shards[layer], layer), [(width, width)])
        else:
            weight = torch.from_numpy(kept.pop())
        gradient, of_weight = layer_backward(own_x, z, weight, gradient)
        del weight
        gradients.insert(0, _average_shard(of_weight))
        del of_weight
    for work in works:
        work.wait()
    return mlp.loss(x), gradients
