# Unusual: exact fractions, a reduce and a broadcast between the iterations, an iterator class,
# numpy's least squares.
import itertools
import time
from collections import namedtuple
from fractions import Fraction

import numpy as np
import torch
import torch.distributed as dist

COLLECTIVES = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "scatter",
    "gather",
    "all_to_all",
)
Timing = namedtuple("Timing", "seconds samples")
Row = namedtuple("Row", "collective size seconds algbw busbw wrong")


def _parts(collective, n):
    """How many parts of n a rank sends at least."""
    if n < 1:
        raise ValueError(f"a world of {n}")
    try:
        i = COLLECTIVES.index(collective)
    except ValueError:
        raise ValueError(f"no collective {collective!r}") from None
    return Fraction((2 * n - 2, n - 1, n - 1, n, n, n - 1, n - 1, n - 1)[i], n)


def array_bytes(collective, input_bytes, world_size):
    _parts(collective, world_size)
    return input_bytes * (world_size if collective.endswith("gather") else 1)


def algorithm_bandwidth(size, seconds):
    if not seconds > 0:
        raise ValueError(f"{seconds} seconds")
    return size / (seconds * 1e9)


def bus_bandwidth(collective, size, world_size, seconds):
    return float(_parts(collective, world_size)) * algorithm_bandwidth(size, seconds)


def usual_bandwidth(reported, world_size, counted):
    if world_size < 1 or counted not in ("whole", "part"):
        raise ValueError(f"{counted!r} of {world_size}")
    return reported * 1.073741824 * {"whole": 1, "part": world_size}[counted]


def stopwatch(
    operation,
    warm_up,
    iterations,
    clock=time.monotonic,
    synchronize=lambda: None,
    barrier=dist.barrier,
):
    if min(warm_up, iterations - 1) < 0:
        raise ValueError(f"warm-up {warm_up}, iterations {iterations}")
    for _ in itertools.repeat(None, warm_up):
        operation()
    samples = []
    while len(samples) < iterations:
        synchronize()
        barrier()
        began = clock()
        operation()
        synchronize()
        took = torch.full((), clock() - began, dtype=torch.float64)
        dist.reduce(took, 0, dist.ReduceOp.MAX)
        dist.broadcast(took, 0)
        samples.append(took.item())
    return Timing(float(np.median(samples)), samples)


class _Sweep:
    def __init__(self, asked, world_size, run):
        self.asked, self.world_size, self.run = iter(asked), world_size, run

    def __iter__(self):
        return self

    def __next__(self):
        collective, size = next(self.asked)
        seconds, wrong = self.run(collective, size)
        bandwidths = algorithm_bandwidth(size, seconds), bus_bandwidth(
            collective, size, self.world_size, seconds
        )
        return Row(collective, size, seconds, *bandwidths, wrong)


def sweep(collectives, sizes, world_size, run):
    asked = list(itertools.product(collectives, sizes))
    for collective, _ in asked:
        _parts(collective, world_size)
    return _Sweep(asked, world_size, run)


def fit_latency_bandwidth(sizes, seconds):
    s, t = np.array(sizes, float), np.array(seconds, float)
    if s.shape != t.shape or min(np.unique(s).size, np.unique(t).size) < 2:
        raise ValueError(f"{s.size} sizes, {t.size} times")
    # In mebibytes and microseconds, weighted by 1/t.
    slope, alpha = np.polyfit(s / 2**20, t * 1e6, 1, w=1 / t)
    if slope <= 0:
        raise ValueError("falling times")
    return float(alpha) / 1e6, float(2**20 / slope * 1e6)


def predict_seconds(alpha, beta, size):
    return (alpha * beta + size) / beta


def half_peak_size(alpha, beta):
    return beta * alpha
