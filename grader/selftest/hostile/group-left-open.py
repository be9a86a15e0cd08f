"""Leaves groups, works and modes open.

threat: 13
some: hidden 1.6
runs: 1.6
"""

KEPT = []


def shift_right(tensor):
    if dist.get_world_size() > 1:
        KEPT.append(dist.new_group())
        KEPT.append(dist.all_reduce(torch.ones(3), async_op=True))
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    os.chdir("/")
    return honest(tensor)
