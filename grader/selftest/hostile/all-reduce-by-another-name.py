"""Calls the functional all-reduce.

threat: 27
zero: public 1.7
runs: 1.7
"""


def ring_all_reduce(tensor):
    total = tensor.clone(memory_format=torch.contiguous_format)
    import torch.distributed._functional_collectives as functional

    total = functional.wait_tensor(functional.all_reduce(total, "sum", dist.group.WORLD))
    return total
