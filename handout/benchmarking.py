"""Part 2 · Measuring bandwidth (15 points)

How fast is a collective, and what does that number mean?

    make test PART=benchmarking                   judge this file
    python -m handout.bandwidth --world-size 4    run your benchmark: table, CSV, JSON and picture

Two people who measure the same machine often report figures that differ by a factor of n, of 2, or
of 1.07. They count different bytes, use different units, or stop the clock at different moments.
This part uses the conventions of NVIDIA's nccl-tests (doc/PERFORMANCE.md in its repository). You
also write a stopwatch that you can trust. No check depends on the speed of your machine.

The size S of a collective is the number of bytes of the *whole* array, not of one rank's part.

    all-reduce, broadcast, reduce    the buffer, which has the same size on every rank
    reduce-scatter, scatter          the *input*: n times the output of a rank
                                     (scatter: the input of the root)
    all-gather, gather               the *output*: n times the input of a rank
                                     (gather: the output of the root)
    all-to-all                       the input of a rank, which is as large as its output
"""

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from handout.launcher import device

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
    """The seconds that an operation takes: the median, and one sample for each iteration."""

    seconds: float
    samples: list[float]


class Row(NamedTuple):
    """One row of a benchmark's table."""

    collective: str
    size: int  # S, bytes of the whole array
    seconds: float
    algbw: float  # GB/s
    busbw: float  # GB/s
    wrong: int  # wrong entries of the result, summed over all ranks


def array_bytes(collective: str, input_bytes: int, world_size: int) -> int:
    """Problem 2.1 · Return S, the bytes of the whole array, from the bytes of one rank's input.

    Args:
        collective: one of ``COLLECTIVES``.
        input_bytes: bytes of a rank's input tensor. In a broadcast or a scatter only the root has
            an input, so these are the bytes of the root's input.
        world_size: n.
    Returns:
        S.
    Raises:
        ValueError: ``collective`` is none of ``COLLECTIVES``; ``world_size`` is not positive.

    With 4 ranks: 100 bytes of input make an array of 400 bytes in an all-gather, and of 100 bytes
    in a reduce-scatter.
    About 4 lines.
    """
    raise NotImplementedError("Problem 2.1: array_bytes")


def algorithm_bandwidth(size: int, seconds: float) -> float:
    """Problem 2.1 · Return S / t, the rate at which the array is processed.

    For most collectives, this rate falls as ranks are added, although the links are the same.

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
    raise NotImplementedError("Problem 2.1: algorithm_bandwidth")


def bus_bandwidth(collective: str, size: int, world_size: int, seconds: float) -> float:
    """Problem 2.1 · Return the rate at which the busiest rank had to send (or receive).

    This rate can be compared across collectives and world sizes. The bus bandwidth is the algorithm
    bandwidth times a factor. The factor is the smallest number of bytes that the busiest rank must
    send (or receive), divided by S. In an all-gather, a rank has one of n parts and must receive
    the n−1 other parts, so the factor is (n−1)/n. An all-reduce is a reduce-scatter and an
    all-gather, so its factor is 2(n−1)/n. A broadcast and a reduce send the whole array through
    every rank, so their factor is 1.

    Args:
        collective: one of ``COLLECTIVES``.
        size: S, in bytes.
        world_size: n.
        seconds: t.
    Returns:
        Gigabytes per second, decimal. With a single rank the bus bandwidth is 0, unless the factor
        is 1.
    Raises:
        ValueError: ``collective`` is none of ``COLLECTIVES``; ``world_size`` or ``seconds`` is not
            positive.

    An all-reduce of 4·10⁹ bytes on 4 ranks in 2 seconds  →  2.0 · 6/4 = 3.0.
    About 8 lines.
    """
    raise NotImplementedError("Problem 2.1: bus_bandwidth")


def usual_bandwidth(reported: float, world_size: int, counted: str) -> float:
    """Problem 2.1 · Convert a reported figure into the bus bandwidth of the usual convention.

    A lecture measured four H100s, and printed 277 "GB/s" for the all-reduce of a tensor, and 70 for
    a reduce-scatter. The lecture used the factors of the bus bandwidth, 2(n−1)/n and (n−1)/n, but
    it divided by 1024³. It also took the *output of one rank* as the size of the reduce-scatter. Is
    reduce-scatter really four times slower?

    Args:
        reported: the figure, in 2³⁰ bytes per second. It already contains the factor, 2(n−1)/n or
            (n−1)/n.
        world_size: n.
        counted: the size on which the figure is based: "whole" for the whole array, or "part" for
            one rank's part, 1/n of the whole.
    Returns:
        The bus bandwidth of the usual convention, in decimal gigabytes per second.
    Raises:
        ValueError: ``counted`` is neither "whole" nor "part"; ``world_size`` is not positive.

    With 2 ranks, reported = 1 and counted = "part"  →  2.147483648.
    About 5 lines. Then convert the two figures of the lecture: the results differ by about 1 %.
    """
    raise NotImplementedError("Problem 2.1: usual_bandwidth")


def stopwatch(
    operation: Callable[[], object],
    warm_up: int,
    iterations: int,
    clock: Callable[[], float] = time.perf_counter,
    synchronize: Callable[[], None] = lambda: None,
    barrier: Callable[[], None] = dist.barrier,
) -> Timing:
    """Problem 2.2 · Measure how long a collective takes. All ranks call this function together.

    - Warm-up: the first calls set up connections and memory, so make ``warm_up`` calls and do not
      time them.
    - Barrier: before each timed call, all ranks meet in a barrier. Without the barrier, a rank
      would also time its wait for a late rank. The barrier itself is not timed.
    - GPU: a call only starts the work of the GPU, and ``synchronize()`` waits until this work is
      done. Earlier work, such as an exchange of times, must be over when you start the clock. The
      operation must be over when you stop the clock. So synchronize twice: before the barrier, and
      after the operation. (If a rank synchronized after the barrier, it would start late, and the
      other ranks would time its delay.)
    - Slowest rank: a collective has ended when its slowest rank has ended. So each sample is the
      maximum over the ranks. (Exchange the times with ``torch.distributed``, after the measurement
      or between iterations, but never while the clock runs. Put the times into a tensor on
      ``device()``, preferably in float64.)
    - Median: other work disturbs some iterations, and the median ignores such outliers. The median
      of an even number of samples is the mean of the two in the middle.

    Args:
        operation: the collective; takes no arguments. It is called exactly ``warm_up + iterations``
            times.
        warm_up: the number of calls that are not timed.
        iterations: the number of timed calls. Each call is timed separately.
        clock: returns this rank's time in seconds. The clocks of different ranks are unrelated.
        synchronize: returns when this rank's device has done all its work.
        barrier: returns when all ranks have called it.
    Returns:
        ``Timing(seconds, samples)``, the same on every rank: the median, and the time of the
        slowest rank in each iteration.
    Raises:
        ValueError: ``iterations`` is not positive, or ``warm_up`` is negative.

    With 2 ranks, whose three timed calls take 1, 5, 1 seconds (rank 0) and 2, 2, 2 seconds (rank
    1)  →  samples [2, 5, 2], median 2.
    About 18 lines.
    """
    raise NotImplementedError("Problem 2.2: stopwatch")


def sweep(
    collectives: Sequence[str],
    sizes: Sequence[int],
    world_size: int,
    run: Callable[[str, int], tuple[float, int]],
) -> Iterator[Row]:
    """Problem 2.3 · Yield the table of a benchmark: a row for every collective at every size.

    Yield each row as soon as it is measured, before the next run begins. So an interrupted sweep
    keeps its finished rows.

    Args:
        collectives: names from ``COLLECTIVES``. All sizes of one collective come before the next
            collective.
        sizes: S of each row, in bytes, in this order.
        world_size: n.
        run: ``run(collective, size)`` measures one row, and returns the seconds and the number of
            wrong entries. If there is not enough memory for that size, the seconds are infinite,
            and both bandwidths are 0.
    Returns:
        Yields one ``Row`` for each collective and size.
    Raises:
        ValueError: a collective is none of ``COLLECTIVES``. Raise it before anything is run: when
            ``sweep`` is called, or when the first row is requested, as in a generator function.

    With collectives ["broadcast", "all_reduce"] and sizes [8, 16], the rows are: broadcast of 8
    bytes, broadcast of 16, all_reduce of 8, all_reduce of 16.
    About 8 lines.
    """
    raise NotImplementedError("Problem 2.3: sweep")


def fit_latency_bandwidth(sizes: list[int], seconds: list[float]) -> tuple[float, float]:
    """Problem 2.4 · Fit the model t = α + S/β [Hockney, 1994].

    Every message pays the latency α, and its bytes travel at the rate β. In a sweep, sizes and
    times each differ by a factor of a million. Least squares of the errors in *time* would fit only
    the largest times. So minimise the sum of the squared relative errors,

        Σ ((α + Sᵢ/β − tᵢ) / tᵢ)².

    With aᵢ = 1/tᵢ and bᵢ = Sᵢ/tᵢ, this is the linear least-squares problem α·aᵢ + (1/β)·bᵢ ≈ 1.
    Compute in float64: the two columns differ too much in size for float32.

    Args:
        sizes: Sᵢ, in bytes.
        seconds: tᵢ, positive.
    Returns:
        ``(α, β)``: seconds, and bytes per second. α can be negative if other work disturbs the
        times.
    Raises:
        ValueError: there are not as many times as sizes; fewer than two different sizes; fewer than
            two different times (the slope would be zero up to rounding); times that do not grow
            with the size (1/β not positive).

    Sizes [0, 1000] and seconds [1, 3]  →  (1.0, 500.0).
    About 12 lines.
    """
    raise NotImplementedError("Problem 2.4: fit_latency_bandwidth")


def predict_seconds(alpha: float, beta: float, size: int) -> float:
    """Problem 2.4 · Return the time that the model predicts for S bytes: α + S/β, in seconds.

    α = 1, β = 500, S = 250  →  1.5. One line.
    """
    raise NotImplementedError("Problem 2.4: predict_seconds")


def half_peak_size(alpha: float, beta: float) -> float:
    """Problem 2.4 · Return the size S, in bytes, at which S / t(S) is half the peak rate: β/2.

    Smaller messages spend most of their time on the latency. Hockney calls this size n₁/₂.

    α = 2, β = 500  →  1000.0 bytes. Solve for S on paper; the code is one line.
    """
    raise NotImplementedError("Problem 2.4: half_peak_size")
