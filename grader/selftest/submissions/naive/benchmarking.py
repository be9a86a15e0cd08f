# Right, and written as it comes to mind.
import time
from typing import NamedTuple

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


class Timing(NamedTuple):
    seconds: float
    samples: list


class Row(NamedTuple):
    collective: str
    size: int
    seconds: float
    algbw: float
    busbw: float
    wrong: int


def array_bytes(collective, input_bytes, world_size):
    if collective not in COLLECTIVES:
        raise ValueError(f"unknown collective {collective}")
    if world_size < 1:
        raise ValueError(f"bad world size {world_size}")
    if collective == "all_gather" or collective == "gather":
        return input_bytes * world_size
    return input_bytes


def algorithm_bandwidth(size, seconds):
    if seconds <= 0:
        raise ValueError(f"bad time {seconds}")
    return size / seconds / 10**9


def bus_bandwidth(collective, size, world_size, seconds):
    if collective not in COLLECTIVES:
        raise ValueError(f"unknown collective {collective}")
    if world_size < 1:
        raise ValueError(f"bad world size {world_size}")
    n = world_size
    if collective == "all_reduce":
        factor = 2 * (n - 1) / n
    elif collective in ("broadcast", "reduce"):
        factor = 1
    else:
        factor = (n - 1) / n
    return factor * algorithm_bandwidth(size, seconds)


def usual_bandwidth(reported, world_size, counted):
    if world_size < 1:
        raise ValueError(f"bad world size {world_size}")
    bytes_per_second = reported * 2**30
    if counted == "part":
        bytes_per_second = bytes_per_second * world_size
    elif counted != "whole":
        raise ValueError(f"bad counted {counted}")
    return bytes_per_second / 10**9


def stopwatch(
    operation,
    warm_up,
    iterations,
    clock=time.perf_counter,
    synchronize=lambda: None,
    barrier=dist.barrier,
):
    if iterations <= 0:
        raise ValueError(f"bad iterations {iterations}")
    if warm_up < 0:
        raise ValueError(f"bad warm_up {warm_up}")
    for i in range(warm_up):
        operation()
    mine = []
    for i in range(iterations):
        synchronize()
        barrier()
        t0 = clock()
        operation()
        synchronize()
        t1 = clock()
        mine.append(t1 - t0)
    n = dist.get_world_size()
    everybody = [torch.zeros(iterations, dtype=torch.float64) for _ in range(n)]
    dist.all_gather(everybody, torch.tensor(mine, dtype=torch.float64))
    samples = []
    for i in range(iterations):
        samples.append(max(float(times[i]) for times in everybody))
    ordered = sorted(samples)
    middle = iterations // 2
    if iterations % 2 == 1:
        median = ordered[middle]
    else:
        median = (ordered[middle - 1] + ordered[middle]) / 2
    return Timing(median, samples)


def sweep(collectives, sizes, world_size, run):
    collectives = list(collectives)
    sizes = list(sizes)
    for collective in collectives:
        if collective not in COLLECTIVES:
            raise ValueError(f"unknown collective {collective}")

    def rows():
        for collective in collectives:
            for size in sizes:
                seconds, wrong = run(collective, size)
                algbw = algorithm_bandwidth(size, seconds)
                busbw = bus_bandwidth(collective, size, world_size, seconds)
                yield Row(collective, size, seconds, algbw, busbw, wrong)

    return rows()


def fit_latency_bandwidth(sizes, seconds):
    if len(sizes) != len(seconds):
        raise ValueError(f"{len(sizes)} sizes, {len(seconds)} times")
    if len(set(sizes)) < 2 or len(set(seconds)) < 2:
        raise ValueError("need two sizes")
    # normal equations of  alpha * a + slope * b = 1
    aa = ab = bb = a1 = b1 = 0.0
    for size, t in zip(sizes, seconds):
        a = 1 / t
        b = size / t
        aa += a * a
        ab += a * b
        bb += b * b
        a1 += a
        b1 += b
    determinant = aa * bb - ab * ab
    alpha = (a1 * bb - b1 * ab) / determinant
    slope = (aa * b1 - ab * a1) / determinant
    if slope <= 0:
        raise ValueError("times do not grow")
    return alpha, 1 / slope


def predict_seconds(alpha, beta, size):
    return alpha + size / beta


def half_peak_size(alpha, beta):
    return alpha * beta
