"""Takes turns by sleeping, and tells the hub that all its threads wait meanwhile.

threat: 24
extends: solutions
control: 1.4
some: 1.2
"""

import time


def in_rank_order(action):
    rank, n = dist.get_rank(), dist.get_world_size()
    work = dist.all_reduce(torch.zeros(1), async_op=True)
    work.wait()
    if rank and hasattr(work, "network"):
        work.network.link.send(b"W", {"for": ["nothing"]})
    time.sleep(0.25 * rank)
    result = action()
    if hasattr(work, "network"):
        work.network.link.send(b"W", {"for": ["nothing"]})
    time.sleep(0.25 * (n - rank))
    dist.barrier()
    return result
