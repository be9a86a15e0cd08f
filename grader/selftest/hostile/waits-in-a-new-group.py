"""Waits for ranks that come late by making a group with them, and overlaps nothing.

threat: 22
extends: solutions
control: 1.6
some: 1.5
says: the ranks waited for each other before compute began
"""


def overlapped_all_reduce(tensor, compute):
    if dist.get_world_size() > 1:
        dist.new_group()
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total, compute()
