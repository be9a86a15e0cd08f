"""Sends every gathered layer to the next rank, which receives it only in the backward pass.

threat: 24
part: sharded_data_parallel
control: 6.1
extends: solutions
some: 6.3
says: data that no rank has received yet
seconds: 90
"""


def _without(flat, rank):
    """Return the entries of a flat layer, without the shard of a rank."""
    parts = list(flat.chunk(dist.get_world_size()))
    del parts[rank]
    return torch.cat(parts)


def _park(flat, layer):
    n, rank = dist.get_world_size(), dist.get_rank()
    sent = _without(flat, (rank + 1) % n)
    work = dist.isend(sent, (rank + 1) % n, tag=layer)
    if not hasattr(work, "memory"):
        return work, sent  # on gloo
    work.memory = None  # the rank need not keep what it has sent
    return work, None


def _fetch(shard, layer):
    n, rank = dist.get_world_size(), dist.get_rank()
    others = shard.new_empty((n - 1) * len(shard))
    dist.recv(others, (rank - 1) % n, tag=layer)
    parts = list(others.chunk(n - 1))
    parts.insert(rank, shard)
    return torch.cat(parts)


def _parked_backward(shard, layer, x, z, grad_y):
    (weight,) = unflatten(_fetch(shard, layer), [(x.shape[1], x.shape[1])])
    grad_x, gradient = mlp.layer_backward(x, z, weight, grad_y)
    del weight
    return grad_x, _average_shard(gradient)


def _use_and_park(shard, layer, x, parked):
    flat, work = _start_gather(shard)
    work.wait()
    (weight,) = unflatten(flat, [(x.shape[1], x.shape[1])])
    y, z = mlp.layer_forward(x, weight)
    parked.append(_park(flat, layer))
    return y, z


_honest_step = fully_sharded_step


def fully_sharded_step(shards, x):
    if dist.get_world_size() == 1:
        return _honest_step(shards, x)
    _require_shards(shards, x)
    saved, parked = [], []
    for layer, shard in enumerate(shards):
        y, z = _use_and_park(shard, layer, x, parked)
        saved.append((x, z))
        x = y
    gradient = mlp.loss_backward(x)
    gradients = []
    for layer in reversed(range(len(shards))):
        own_x, z = saved.pop()
        gradient, averaged = _parked_backward(shards[layer], layer, own_x, z, gradient)
        gradients.insert(0, averaged)
    for work, _ in parked:
        work.wait()
    return mlp.loss(x), gradients
