"""Stops its watch before the device has finished.

threat: 24
part: benchmarking
extends: solutions
some: 2.2
"""


def stopwatch(operation, warm_up, iterations, clock, synchronize, barrier):
    samples = []
    for _ in range(warm_up + iterations):
        barrier()
        began = clock()
        operation()
        samples.append(clock() - began)
    times = torch.tensor(samples[warm_up:], dtype=torch.float64)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return float(times.median()), times.tolist()
