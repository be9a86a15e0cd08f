"""Calls the barrier more often on some ranks: a real one would never end.

threat: 24
part: benchmarking
extends: solutions
some: 2.2
says: barrier ends when all ranks have called it
"""

_honest_watch = stopwatch


def stopwatch(
    operation,
    warm_up,
    iterations,
    clock=time.perf_counter,
    synchronize=lambda: None,
    barrier=dist.barrier,
):
    def uneven():  # on rank 0 twice, on the last rank three times: a real barrier never ends
        for _ in range(
            1 + (dist.get_rank() == 0) + 2 * (dist.get_rank() == dist.get_world_size() - 1)
        ):
            barrier()

    return _honest_watch(operation, warm_up, iterations, clock, synchronize, uneven)
