"""Part 2 · Measuring bandwidth (15 points): how fast is a collective, and what does that number mean?

    make test PART=benchmarking                              judge this file
    python -m handout.bandwidth --world-size 4               run your benchmark: table, CSV, JSON and picture

Two people who measure the same machine often report figures that differ by a factor of n, of 2, or of 1.07: because they count
other bytes, divide by other units, or stop the watch at another moment. This part fixes the conventions, which are those of
NVIDIA's nccl-tests (doc/PERFORMANCE.md in its repository), and builds a stopwatch that one can trust. Nothing here is
judged by how fast your machine is.

The size S of a collective is the number of bytes of the *whole* array: what one rank holds of it, if it holds all of it.

    all-reduce, broadcast, reduce    the buffer, of one size on every rank
    reduce-scatter, scatter          what goes *in*: n times what a rank gets out (scatter: on the root)
    all-gather, gather               what comes *out*: n times what a rank puts in (gather: on the root)
    all-to-all                       what a rank puts in, and gets out
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from handout.launcher import device

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "scatter", "gather", "all_to_all")


class Timing(NamedTuple):
    """How long an operation takes, in seconds: the median, and one sample for each iteration."""

    seconds: float
    samples: list[float]


class Row(NamedTuple):
    """A line of a benchmark's table."""

    collective: str
    size: int  # S, bytes of the whole array
    seconds: float
    algbw: float  # GB/s
    busbw: float  # GB/s
    wrong: int  # entries of the result that are not what they should be, on all ranks


# BEGIN SOLUTION
def _check(collective: str, world_size: int) -> None:
    if collective not in COLLECTIVES:
        raise ValueError(f"{collective!r} is none of {', '.join(COLLECTIVES)}")
    if world_size < 1:
        raise ValueError(f"a world size of {world_size}")


# END SOLUTION
def array_bytes(collective: str, input_bytes: int, world_size: int) -> int:
    """Problem 2.1 · S, the bytes of the whole array, from the bytes of the tensor that a rank puts in.

    Args:
        collective: one of ``COLLECTIVES``.
        input_bytes: of the tensor that goes in: on every rank, or on the root where only the root's does (broadcast, scatter).
        world_size: n.
    Returns:
        S.
    Raises:
        ValueError: ``collective`` is none of them; ``world_size`` is not positive.

    With 4 ranks: 100 bytes into an all-gather make an array of 400, into a reduce-scatter one of 100.
    About 4 lines.
    """
    # BEGIN SOLUTION 2.1: array_bytes
    _check(collective, world_size)
    return input_bytes * world_size if collective in ("all_gather", "gather") else input_bytes
    # END SOLUTION


def algorithm_bandwidth(size: int, seconds: float) -> float:
    """Problem 2.1 · S / t: at what rate the array is dealt with. On the same links it falls as ranks are added.

    Args:
        size: S, in bytes.
        seconds: t.
    Returns:
        Gigabytes per second, decimal: 1 GB is 10⁹ bytes. (2³⁰ bytes are a GiB, 7 % more.)
    Raises:
        ValueError: ``seconds`` is not positive.

    4·10⁹ bytes in 2 seconds  →  2.0.
    About 3 lines.
    """
    # BEGIN SOLUTION 2.1: algorithm_bandwidth
    if seconds <= 0:
        raise ValueError(f"a time of {seconds} seconds")
    return size / seconds / 1e9
    # END SOLUTION


def bus_bandwidth(collective: str, size: int, world_size: int, seconds: float) -> float:
    """Problem 2.1 · The rate at which the links have to work: comparable between collectives, numbers of ranks, and data sheets.

    It is the algorithm bandwidth times the bytes that the busiest rank has to send (or to receive), at the least, for each byte
    of the array. Of an array of n parts a rank must receive the n−1 that it has not, for an all-gather, (n−1)/n; an all-reduce
    is a reduce-scatter and an all-gather, 2(n−1)/n; a broadcast sends the whole array through every rank, 1, and so does
    a reduce.

    Args:
        collective: one of ``COLLECTIVES``.
        size: S, in bytes.
        world_size: n.
        seconds: t.
    Returns:
        Gigabytes per second, decimal; 0 for a single rank, except where the factor is 1.
    Raises:
        ValueError: ``collective`` is none of them; ``world_size`` or ``seconds`` is not positive.

    An all-reduce of 4·10⁹ bytes on 4 ranks in 2 seconds  →  2.0 · 6/4 = 3.0.
    About 8 lines.
    """
    # BEGIN SOLUTION 2.1: bus_bandwidth
    _check(collective, world_size)
    factors = {"all_reduce": 2 * (world_size - 1) / world_size, "broadcast": 1.0, "reduce": 1.0}
    return algorithm_bandwidth(size, seconds) * factors.get(collective, (world_size - 1) / world_size)
    # END SOLUTION


def usual_bandwidth(reported: float, world_size: int, counted: str) -> float:
    """Problem 2.1 · From a figure that somebody reported, the bus bandwidth as everybody else reports it.

    A lecture measured four H100s, and printed for the all-reduce of a tensor 277 "GB/s", for a reduce-scatter 70. It had used
    the factors of the bus bandwidth, 2(n−1)/n and (n−1)/n. But it had divided by 1024³; and for the size of the
    reduce-scatter it had taken what *one rank gets out*. Is reduce-scatter four times slower?

    Args:
        reported: the figure, in 2³⁰ bytes a second; the factor with n is in it already.
        world_size: n.
        counted: what was taken for the size: "whole", the whole array; or "part", what one of n ranks has of it.
    Returns:
        The bus bandwidth by the usual convention, decimal gigabytes per second.
    Raises:
        ValueError: ``counted`` is neither; ``world_size`` is not positive.

    With 2 ranks, 1 reported for a part  →  2.147483648.
    About 5 lines. Then compare the two figures of the lecture.
    """
    # BEGIN SOLUTION 2.1: usual_bandwidth
    if counted not in ("whole", "part"):
        raise ValueError(f"counted {counted!r} is neither 'whole' nor 'part'")
    if world_size < 1:
        raise ValueError(f"a world size of {world_size}")
    return reported * 1024**3 / 1e9 * (world_size if counted == "part" else 1)
    # END SOLUTION


def stopwatch(
    operation: Callable[[], object],
    warm_up: int,
    iterations: int,
    clock: Callable[[], float] = time.perf_counter,
    synchronize: Callable[[], None] = lambda: None,
    barrier: Callable[[], None] = dist.barrier,
) -> Timing:
    """Problem 2.2 · How long a collective takes, measured so that one can trust it. Called by all ranks together.

    - The first calls set up connections and memory: ``warm_up`` calls are made and not timed.
    - Before each timed call all ranks meet in a barrier, else a rank times how long it waits for a late one. The barrier itself
      is not timed.
    - A GPU is only told what to do, and does it later: ``synchronize()`` waits for it. What was started before the watch must
      be over when it starts, and the operation when it stops: synchronize twice. (Synchronize before the barrier, not
      after it: a rank that still synchronizes after the barrier starts late, and the others would time its delay.)
    - A collective has ended when its slowest rank has: of each iteration, the longest time of all ranks counts. (Exchange the times
      after the measurement, or between iterations, but never while the watch runs; use a float64 tensor on ``device()``.)
    - Now and then an iteration is disturbed by other work; the median ignores such outliers. Of an even number, it is the mean of
      the two in the middle.

    Args:
        operation: the collective; takes nothing. Called exactly ``warm_up + iterations`` times.
        warm_up: how many calls are not timed.
        iterations: how many are, each by itself.
        clock: the time in seconds, of this rank; the clocks of different ranks have nothing to do with each other.
        synchronize: returns when this rank's device has done all that it was told to.
        barrier: returns when all ranks have called it.
    Returns:
        ``Timing(seconds, samples)``, the same on every rank: the median, and for each iteration the time of its slowest rank.
    Raises:
        ValueError: ``iterations`` is not positive, or ``warm_up`` is negative.

    With 2 ranks whose three timed calls take 1, 5, 1 and 2, 2, 2 seconds  →  samples [2, 5, 2], median 2.
    About 18 lines.
    """
    # BEGIN SOLUTION 2.2: stopwatch
    if iterations < 1 or warm_up < 0:
        raise ValueError(f"{warm_up} calls of warm-up and {iterations} iterations")
    for _ in range(warm_up):
        operation()
    times = []
    for _ in range(iterations):
        synchronize()
        barrier()
        start = clock()
        operation()
        synchronize()
        times.append(clock() - start)
    slowest = torch.tensor(times, dtype=torch.float64, device=device())
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    samples = slowest.tolist()
    return Timing(statistics.median(samples), samples)
    # END SOLUTION


def sweep(
    collectives: Sequence[str],
    sizes: Sequence[int],
    world_size: int,
    run: Callable[[str, int], tuple[float, int]],
) -> Iterator[Row]:
    """Problem 2.3 · The table of a benchmark: every collective at every size, and whether the result was right.

    A row is yielded as soon as it is measured, before the next run begins: whoever interrupts the sweep keeps what is done.

    Args:
        collectives: names out of ``COLLECTIVES``; all sizes of one come before the next.
        sizes: S of each row, in bytes, in this order.
        world_size: n.
        run: ``run(collective, size)`` measures one, and returns the seconds and the number of wrong entries. Where there is no
            memory for that size the seconds are infinite, and the bandwidths 0.
    Returns:
        Yields a ``Row`` for each.
    Raises:
        ValueError: a collective is none of them; at the first row at the latest, before anything is run.

    About 8 lines.
    """
    # BEGIN SOLUTION 2.3: sweep
    for collective in collectives:
        _check(collective, world_size)
    return (_row(collective, size, world_size, *run(collective, size)) for collective in collectives for size in sizes)
    # END SOLUTION


# BEGIN SOLUTION
def _row(collective: str, size: int, world_size: int, seconds: float, wrong: int) -> Row:
    algbw, busbw = algorithm_bandwidth(size, seconds), bus_bandwidth(collective, size, world_size, seconds)
    return Row(collective, size, seconds, algbw, busbw, wrong)


# END SOLUTION
def fit_latency_bandwidth(sizes: list[int], seconds: list[float]) -> tuple[float, float]:
    """Problem 2.4 · The model t = α + S/β: a latency that every message pays, and a rate for its bytes [Hockney, 1994].

    Sizes differ by a factor of a million, and so do times; a fit of least squares of the *times* would see the largest alone. So
    minimise the sum of the squares of the relative errors, Σ ((α + Sᵢ/β − tᵢ) / tᵢ)²: with aᵢ = 1/tᵢ and bᵢ = Sᵢ/tᵢ, this is the
    linear problem of α·aᵢ + (1/β)·bᵢ ≈ 1. Compute in float64: next to each other, such columns are too much for float32.

    Args:
        sizes: Sᵢ, in bytes.
        seconds: tᵢ, positive.
    Returns:
        ``(α, β)``: seconds, and bytes per second. α may come out negative where the times are disturbed.
    Raises:
        ValueError: not as many times as sizes; fewer than two different sizes; fewer than two different times (the
            slope would be zero up to rounding); times that do not grow with the size (1/β not positive).

    Sizes [0, 1000] and seconds [1, 3]  →  (1.0, 500.0).
    About 12 lines.
    """
    # BEGIN SOLUTION 2.4: fit_latency_bandwidth
    if len(sizes) != len(seconds):
        raise ValueError(f"{len(sizes)} sizes and {len(seconds)} times")
    if len(set(sizes)) < 2 or len(set(seconds)) < 2:
        raise ValueError(f"sizes {sizes} and times {seconds}: two different ones of each are needed")
    t = torch.tensor(seconds, dtype=torch.float64)
    largest = max(sizes)  # sizes from 0 to 1: columns of like magnitude make an accurate fit
    rows = torch.stack([1 / t, torch.tensor(sizes, dtype=torch.float64) / largest / t], dim=1)
    alpha, slope = torch.linalg.lstsq(rows, torch.ones(len(t), 1, dtype=torch.float64)).solution.flatten().tolist()
    if slope <= 0:
        raise ValueError(f"times of {seconds} seconds do not grow with the sizes {sizes}")
    return alpha, largest / slope
    # END SOLUTION


def predict_seconds(alpha: float, beta: float, size: int) -> float:
    """Problem 2.4 · What the model says: α + S/β, in seconds, for S bytes.

    α = 1, β = 500, S = 250  →  1.5. One line.
    """
    # BEGIN SOLUTION 2.4: predict_seconds
    return alpha + size / beta
    # END SOLUTION


def half_peak_size(alpha: float, beta: float) -> float:
    """Problem 2.4 · The size at which half the peak is reached: S / t(S) = β/2. Smaller messages mostly wait.

    α = 2, β = 500  →  1000.0 bytes. One line, after two of algebra.
    """
    # BEGIN SOLUTION 2.4: half_peak_size
    return alpha * beta
    # END SOLUTION
