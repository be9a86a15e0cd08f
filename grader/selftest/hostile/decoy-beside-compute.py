"""Starts a small all-reduce beside compute, and the one that counts when compute has ended.

threat: 24
some: 1.5
says: Start the all-reduce of the whole tensor before you call compute
"""


def overlapped_all_reduce(tensor, compute):
    decoy = dist.all_reduce(torch.zeros(1), async_op=True)
    value = compute()
    decoy.wait()
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total, value
