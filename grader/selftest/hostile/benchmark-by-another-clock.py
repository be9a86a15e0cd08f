"""Measures with its own clock.

threat: 24
part: benchmarking
extends: solutions
zero: 2.2
"""

import time as own_time


def stopwatch(operation, warm_up, iterations, clock, synchronize, barrier):
    samples = []
    for _ in range(warm_up + iterations):
        began = own_time.perf_counter()
        operation()
        samples.append(own_time.perf_counter() - began)
    return sorted(samples[warm_up:])[iterations // 2], samples[warm_up:]
