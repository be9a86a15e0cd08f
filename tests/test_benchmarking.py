"""Part 2 · Measuring bandwidth: the public checks. No check depends on real speed.

Run one problem with ``make test PART=benchmarking K=stopwatch``.
"""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check.api import Tolerance, call, per_rank, rounding
from grader.reference import benchmark_rows, stopwatches
from grader.reference.counting import counted, often

CLOSE = rounding(np.float64)
FIT = Tolerance(1e-4, "a least-squares fit of two unknowns, by any algorithm")


def as_number(value):
    return np.array(benchmark_rows.as_float(value))


N_MINUS_ONE_PARTS = (
    "the figure for a “part” was multiplied by n − 1. The whole array has n parts, and the reported"
    " figure already contains the factor (n − 1)/n"
)


@number("2.1")
@weight(0.5)
def test_bandwidths(world):
    """array_bytes, algorithm_bandwidth, bus_bandwidth and usual_bandwidth are right for small
    examples; a time of 0 seconds raises ValueError
    """
    size, algorithm, bus, whole, part_of_rank, timeless = world(
        1,
        call("benchmarking.array_bytes", "all_gather", 100, 4),
        call("benchmarking.algorithm_bandwidth", 4 * 10**9, 2.0),
        call("benchmarking.bus_bandwidth", "all_reduce", 4 * 10**9, 4, 2.0),
        call("benchmarking.usual_bandwidth", 277.0, 4, "whole"),
        call("benchmarking.usual_bandwidth", 70.0, 4, "part"),
        call("benchmarking.algorithm_bandwidth", 4 * 10**9, 0.0, may_raise=True),
    )
    part = {
        (
            "these are the bytes of one rank's input. The array of an all-gather is its"
            " output, which is n times as large"
        ): np.array(100.0)
    }
    size.returns(np.array(400.0), select=as_number, known_mistakes=[part])
    gib = {"this is in GiB/s (2³⁰ bytes). Use GB/s (10⁹ bytes)": np.array(4e9 / 2 / 1024**3)}
    algorithm.returns(np.array(2.0), tolerance=CLOSE, select=as_number, known_mistakes=[gib])
    plain = {
        (
            "this is the algorithm bandwidth. In an all-reduce, each rank must send 2(n−1)/n bytes"
            " for each byte of the array"
        ): np.array(2.0),
        (
            "this is half of the bus bandwidth. An all-reduce costs as much as a reduce-scatter and"
            " an all-gather together"
        ): np.array(1.5),
        "the factor was inverted: 2n/(n−1). Use 2(n−1)/n": np.array(16 / 3),
    }
    # 2 * n - 1 / n, 2 * (n - 1 / n) and 2 - 1 / n
    for factor in (7.75, 7.5, 1.75):
        name = f"the parentheses are wrong. On 4 ranks 2 · (n − 1) / n is 1.5, not {factor:g}"
        plain[name] = np.array(2 * factor)
    bus.returns(np.array(3.0), tolerance=CLOSE, select=as_number, known_mistakes=[plain])
    for run, gibibytes, parts, exchanged in ((whole, 277, 1, 4), (part_of_rank, 70, 4, 1)):
        bytes_ = gibibytes * 1024**3
        swapped = (
            "the size of one part was used. The whole array has n parts"
            if run is part_of_rank
            else "a figure for the “whole” array was multiplied by n. Multiply by n only if counted"
            " is “part”"
        )
        known = {
            swapped: np.array(bytes_ * exchanged / 1e9),
            "this is still in 2³⁰ bytes per second": np.array(float(gibibytes * parts)),
            "the unit was converted in the wrong direction. Multiply by 1024³/10⁹": np.array(
                gibibytes * parts * 1e9 / 1024**3
            ),
            "the factor 2(n−1)/n was applied, but the reported figure contains it already": (
                np.array(bytes_ * parts * 1.5 / 1e9)
            ),
        }
        if run is part_of_rank:
            divided = "the figure for a “part” was divided by n. The whole array has n parts"
            known[f"{divided}: multiply by n"] = np.array(bytes_ / 4 / 1e9)
            known[N_MINUS_ONE_PARTS] = np.array(bytes_ * 3 / 1e9)
        else:
            divided = "this was divided by the factor 2(n−1)/n"
            known[f"{divided}. The bus bandwidth contains this factor"] = np.array(
                bytes_ / 1.5 / 1e9
            )
        usual = np.array(bytes_ * parts / 1e9)
        run.returns(usual, tolerance=CLOSE, select=as_number, known_mistakes=[known])
    timeless.raises_value_error("0")


def refuses(world, size, *cases):
    """Fail unless each call raises a ValueError. A case is a call and a word of the message."""
    runs = world(size, *(request for request, _ in cases))
    for run, (_, word) in zip(runs, cases):
        run.raises_value_error(word)
    return runs


@number("2.1")
@weight(0.125)
def test_bandwidth_misuse(world):
    """An unknown collective, world size ≤ 0 or wrong “counted” raises ValueError with the value"""
    of_array, of_bus = "benchmarking.array_bytes", "benchmarking.bus_bandwidth"
    usual = "benchmarking.usual_bandwidth"
    refuses(
        world,
        1,
        (call(of_array, "allreduce", 100, 4, may_raise=True), "allreduce"),
        (call(of_array, "all_reduce", 100, 0, may_raise=True), "0"),
        (call(of_bus, "allreduce", 100, 4, 1.0, may_raise=True), "allreduce"),
        (call(of_bus, "all_reduce", 100, -1, 1.0, may_raise=True), "-1"),
        (call(usual, 277.0, 4, "all", may_raise=True), "all"),
        (call(usual, 277.0, -4, "whole", may_raise=True), "-4"),
    )


@number("2.2")
@weight(1.0)
def test_stopwatch(world):
    """If calls take 1, 5, 1 seconds on rank 0, and 2, 2, 2 seconds on rank 1, stopwatch returns the
    samples 2, 5, 2 and the median 2
    """
    watch = {
        "warm_up": 1,
        "iterations": 3,
        "asynchronous": False,
        "barrier_takes": 0.0,
        "late": 0.0,
        "busy": 0.0,
    }
    calls = per_rank((9.0, 1.0, 5.0, 1.0), (9.0, 2.0, 2.0, 2.0))
    # In the second run the barrier takes 100 seconds. A call takes 1000 seconds more if there is no
    # barrier before the call. The device is busy for the first 300 seconds.
    slow = {
        "warm_up": 0,
        "iterations": 3,
        "asynchronous": True,
        "barrier_takes": 100.0,
        "late": 1000.0,
        "busy": 300.0,
    }
    run, hard = world(
        2,
        call("benchmarking.stopwatch", driver="timed", calls=calls, **watch),
        call(
            "benchmarking.stopwatch",
            driver="timed",
            calls=per_rank((1.0, 5.0, 1.0), (2.0, 2.0, 2.0)),
            **slow,
        ),
    )
    cold = {
        "the warm-up call was timed": np.array([9.0, 2.0, 5.0]),
        stopwatches.ACROSS: stopwatches.across_clocks(
            [[9.0, 1.0, 5.0, 1.0], [9.0, 2.0, 2.0, 2.0]], warm_up=1
        ),
        "this is the mean over the ranks. A collective ends when its slowest rank ends": (
            np.array([1.5, 3.5, 1.5])
        ),
        "these are the fastest rank's times": np.array([1.0, 2.0, 1.0]),
        "this is the sum over the ranks. Take the slowest rank's time": np.array([3.0, 7.0, 3.0]),
        "the clock was read once for all calls. Read it for each call": (
            np.array([7.0, 7.0, 7.0]) / 3
        ),
        "the samples were sorted. Keep them in the order of the calls": np.array([2.0, 2.0, 5.0]),
    }
    mine = (
        "these are this rank's own times. Every rank must return, for each call, the time of the"
        " slowest rank"
    )
    own = [{mine: np.array(t)} | cold for t in ([1.0, 5.0, 1.0], [2.0, 2.0, 2.0])]
    samples, seconds = np.array([2.0, 5.0, 2.0]), np.array(2.0)
    for rank, timing in enumerate(run.values()):
        run.require(
            isinstance(timing, (list, tuple)) and len(timing) == 2,
            "stopwatch must return Timing(seconds, samples) on every rank. Rank"
            f" {rank} returned {timing!r:.80}.",
        )
    stopwatches.require_looks(run, warm_up=1, iterations=3)
    stopwatches.require_looks(hard, warm_up=0, iterations=3)
    run.returns(
        samples,
        samples,
        tolerance=CLOSE,
        select=lambda r: np.array([benchmark_rows.as_float(sample) for sample in r[1]]),
        label="the list of samples",
        known_mistakes=own,
    )
    mean = {
        "this is the mean. Return the median": np.array(3.0),
        (
            "this is the largest sample, or the middle one of an unsorted list. Return the median"
        ): np.array(5.0),
    }
    run.returns(
        seconds,
        seconds,
        tolerance=CLOSE,
        select=lambda r: as_number(r[0]),
        label="the time",
        known_mistakes=[mean] * 2,
    )
    misplaced = {
        "the 100 seconds of the barrier were timed. Call barrier before the clock starts": np.array(
            [102.0, 105.0, 102.0]
        ),
        (
            "from the second call on, the 100 seconds of the barrier are part of the measured time."
            " Read the clock before each call, after its barrier"
        ): np.array([2.0, 105.0, 102.0]),
        "the barrier comes after the call. All ranks must meet before the call": np.array(
            [1102.0, 105.0, 102.0]
        ),
        (
            "your code did not call its argument `barrier` before the operation. (dist.barrier is"
            " another function.) So the operation waits 1000 seconds for the rank that comes late"
        ): np.array([1002.0, 1005.0, 1002.0]),
        (
            "there is a barrier only before the first timed call. Each timed call needs its own"
            " barrier"
        ): np.array([2.0, 1005.0, 1002.0]),
        (
            "before the clock starts, your code calls neither synchronize nor the argument barrier"
            " (dist.barrier is not this argument). Call synchronize, then barrier, and then read"
            " the clock"
        ): np.array([1302.0, 1005.0, 1002.0]),
        "the barrier was timed, and there is no synchronize() before the clock starts": np.array(
            [302.0, 105.0, 102.0]
        ),
        "there is no barrier before the first call, only after each call": np.array(
            [1002.0, 5.0, 2.0]
        ),
        "only rank 0 called the barrier": np.array([1002.0] * 3),
        (
            "the clock starts before synchronize and the barrier. Call synchronize, then barrier,"
            " and then read the clock"
        ): np.array([402.0, 105.0, 102.0]),
        (
            "there is no synchronize() before the clock is stopped. The device had only started"
            " its work"
        ): np.array([0.001] * 3),
        (
            "there is no synchronize() before the clock is started. The device was still busy with"
            " earlier work"
        ): np.array([202.0, 5.0, 2.0]),
    }
    label = "the list of samples (here the barrier and the device take time)"
    part = lambda r: np.array(r[1], float)
    hard.returns(
        samples,
        samples,
        tolerance=CLOSE,
        select=part,
        label=label,
        known_mistakes=[misplaced] * 2,
        otherwise="barrier, synchronize or the clock is called at a wrong place, or not at all."
        " Compare your order with the docstring",
    )


@number("2.2")
@weight(0.25)
def test_stopwatch_misuse(world):
    """stopwatch raises ValueError with the value if iterations ≤ 0 or warm_up < 0"""
    watch = {"asynchronous": False, "barrier_takes": 0.0, "late": 0.0, "busy": 0.0}
    watch |= {"calls": (1.0,), "driver": "timed", "may_raise": True}
    name = "benchmarking.stopwatch"
    refuses(
        world,
        2,
        (call(name, warm_up=1, iterations=0, **watch), "0"),
        (call(name, warm_up=-2, iterations=3, **watch), "-2"),
    )


@number("2.3")
@weight(0.5)
def test_sweep(world):
    """sweep yields four rows for two collectives at two sizes, each with both bandwidths and the
    number of wrong entries
    """
    answers = [(1.0, 0), (1.0, 0), (2.0, 0), (4.0, 7)]
    (run,) = world(
        1,
        call(
            "benchmarking.sweep",
            ["all_reduce", "broadcast"],
            [10**9, 4 * 10**9],
            2,
            answers,
            driver="swept",
        ),
    )
    expected = [
        ("all_reduce", 10**9, 1.0, 1.0, 1.0, 0),
        ("all_reduce", 4 * 10**9, 1.0, 4.0, 4.0, 0),
        ("broadcast", 10**9, 2.0, 0.5, 0.5, 0),
        ("broadcast", 4 * 10**9, 4.0, 1.0, 1.0, 7),
    ]
    made = benchmark_rows.as_rows(run.values()[0])
    order = [
        e.name.split()[0]
        for e in run.report.ranks[0].trail
        if getattr(e, "name", "").startswith(("run ", "row"))
    ]
    run.require(made is not None, benchmark_rows.NO_ROWS)
    run.require(
        len(made) == 4,
        f"the sweep yielded {counted(len(made), 'row')}. It must yield one row for each"
        " collective at each size, 4 in all.",
    )
    runs = order.count("run")
    run.require(
        runs == 4,
        f"the sweep called run {often(runs)}. It must call run once for each collective at each"
        " size, 4 times in all.",
    )
    for row, due in zip(made, expected):
        wrong = benchmark_rows.row_difference(row, due)
        run.require(wrong is None, f"{due[0]}, {due[1]} bytes: {wrong}")
    late = f"the order of runs and rows was: {', '.join(order)}. Yield each row when its run ends."
    run.require(order == ["run", "row"] * 4, late)


@number("2.3")
@weight(0.25)
def test_sweep_misuse(world):
    """An unknown collective raises ValueError before anything is run"""
    given = ["all_reduce", "allgather"], [1000], 2, [(1.0, 0)] * 2
    swept = call("benchmarking.sweep", *given, driver="swept", may_raise=True)
    (run,) = refuses(world, 1, (swept, "allgather"))
    names = [getattr(event, "name", "") for event in run.report.ranks[0].trail]
    ran = [name for name in names if name.startswith("run")]
    run.require(not ran, "sweep raised the ValueError after a run. Check all collectives first.")


@number("2.4")
@weight(0.5)
def test_model(world):
    """fit_latency_bandwidth is exact for two points, and minimises the relative errors for three;
    predict_seconds and half_peak_size follow t = α + S/β
    """
    name = "benchmarking.fit_latency_bandwidth"
    fit, nearest, equal, falling, one_size, odd, predicted, half = world(
        1,
        call(name, [0, 1000], [1.0, 3.0]),
        call(name, [0, 1000, 2000], [1.0, 1.0, 2.0]),
        call(name, [1000, 10**9], [0.1, 0.1], may_raise=True),
        call(name, [1000, 2000], [0.2, 0.1], may_raise=True),
        call(name, [1000, 1000], [0.1, 0.2], may_raise=True),
        call(name, [1000, 2000, 3000], [0.1, 0.2], may_raise=True),
        call("benchmarking.predict_seconds", 1.0, 500.0, 250),
        call("benchmarking.half_peak_size", 2.0, 500.0),
    )
    slope = {
        "this is the slope, seconds per byte. The bandwidth is its inverse": np.array([1.0, 0.002]),
        "α and β are swapped. Return (α, β)": np.array([500.0, 1.0]),
        "divide the right side of each equation by the time, too. Then this side is 1": np.array(
            [1.0, 125.0]
        ),
    }
    require_fit(fit, [1.0, 500.0], slope)
    of_others = {
        (
            "the absolute errors were minimised. Minimise the relative errors, Σ (error/t)²"
        ): np.array([5 / 6, 2000.0]),
        "this minimises Σ (error²/t), not Σ (error/t)²": np.array([6 / 7, 7000 / 3]),
    }
    require_fit(nearest, [8 / 9, 3000.0], of_others)
    equal.raises_value_error(
        because="All times are equal, so only rounding decides the sign of 1/β."
    )
    falling.raises_value_error(because="The times do not grow with the size.")
    one_size.raises_value_error(because="Times of a single size do not determine α and β.")
    odd.raises_value_error(because="There are 3 sizes and 2 times.")
    quick = {
        "this is only the time that the bytes take. Add the latency": np.array(0.5),
        "β is a rate, in bytes per second. Divide S by β": np.array(125001.0),
    }
    predicted.returns(np.array(1.5), tolerance=CLOSE, select=as_number, known_mistakes=[quick])
    inverse = {
        "this is the bandwidth divided by the latency, which is not a number of bytes": np.array(
            250.0
        ),
        "this is αβ/2. t(S) contains S, too: solve S = β/2 · (α + S/β)": np.array(500.0),
    }
    half.returns(np.array(1000.0), tolerance=CLOSE, select=as_number, known_mistakes=[inverse])


def require_fit(run, right, mistakes):
    """Fail unless fit_latency_bandwidth returned the pair ``right``, (α, β).

    In the dict ``mistakes``, each key is the sentence that describes a mistake, and its value is
    the wrong pair.
    """
    for index, name in enumerate(
        ("α, the latency in seconds,", "β, the rate in bytes per second,")
    ):
        run.returns(
            np.array(right[index]),
            tolerance=FIT,
            select=lambda r, index=index: as_number(r[index]),
            label=name,
            known_mistakes=[{text: np.array(pair[index]) for text, pair in mistakes.items()}],
            otherwise="with other α and β, Σ ((α + S/β − t)/t)² is smaller. Do you use all sizes?",
        )
