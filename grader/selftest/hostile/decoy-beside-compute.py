"""Starts a small all-reduce beside compute, and the one that counts when compute has ended.

threat: 24
some: 1.5
says: are enough for the all-reduce of this tensor
"""


def overlapped_all_reduce(tensor, compute):
    decoy = dist.all_reduce(torch.zeros(1), async_op=True)
    value = compute()
    decoy.wait()
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total, value
