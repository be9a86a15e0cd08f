"""Calls all_reduce in a group of its own.

threat: 27
zero: public 1.7
runs: 1.7
"""


def ring_all_reduce(tensor):
    total = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=dist.new_group())
    return total
