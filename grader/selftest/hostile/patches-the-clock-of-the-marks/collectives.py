def in_rank_order(action):
    rank = dist.get_rank()
    times = iter([1000 * rank + 1, 1000 * rank + 2, 10**9])
    dist.barrier()
    time.monotonic_ns = lambda: next(times, 10**9)
    return action()
