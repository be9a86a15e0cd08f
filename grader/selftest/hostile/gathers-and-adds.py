"""Gathers all tensors and adds them.

threat: 27
zero: public 1.7
runs: 1.7
"""


def ring_all_reduce(tensor):
    total = tensor.clone(memory_format=torch.contiguous_format)
    parts = [torch.empty_like(total) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, total)
    total = sum(parts)
    return total
