"""Calls all_reduce where only sends and receives are allowed.

threat: 27
zero: public 1.7
runs: 1.7
"""


def ring_all_reduce(tensor):
    total = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total
