"""Brings the whole model with its first all-gather, and one number with each of the others.

threat: 24
part: sharded_data_parallel
extends: solutions
control: 6.1
some: 6.4
says: Gather one layer with each all-gather.
seconds: 60
"""


def _gather_all(shards, width):
    n = dist.get_world_size()
    own = torch.cat([shard.contiguous() for shard in shards])
    whole = own.new_empty(n * len(own))
    dist.all_gather(list(whole.chunk(n)), own)
    of_ranks = [part.split([len(shard) for shard in shards]) for part in whole.view(n, -1)]
    layers = [torch.cat([of_rank[l] for of_rank in of_ranks]) for l in range(len(shards))]
    return [layer[: width * width].view(width, width).clone() for layer in layers]


def _gather_a_number(x):
    n = dist.get_world_size()
    return dist.all_gather(list(x.new_empty(n).chunk(n)), x.new_empty(1), async_op=True)


def prefetched_step(shards, x, layer_forward=mlp.layer_forward, layer_backward=mlp.layer_backward):
    _require_shards(shards, x)
    layers, saved, works = len(shards), [], []
    weights = _gather_all(shards, x.shape[1])
    for l in range(layers):
        if l + 1 < layers:
            works.append(_gather_a_number(x))
        y, z = layer_forward(x, weights[l])
        saved.append((x, z))
        x = y
    gradient = mlp.loss_backward(x)
    gradients = []
    for l in reversed(range(layers)):
        if l > 0:
            works.append(_gather_a_number(x))
        own_x, z = saved.pop()
        gradient, of_weight = layer_backward(own_x, z, weights.pop(), gradient)
        gradients.insert(0, _average_shard(of_weight))
        del of_weight
    for work in works:
        work.wait()
    return mlp.loss(x), gradients
