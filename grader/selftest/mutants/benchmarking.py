"""Part 2 · Measuring bandwidth: wrong submissions."""

from grader.selftest.mutants.mutant import Mutant

WATCH = {
    "public stopwatch",
    "hidden warm_up",
    "hidden barrier",
    "hidden synchronize",
    "hidden slowest_rank",
    "hidden median",
}
RATES = {"public bandwidths", "hidden bus_bandwidth", "public sweep", "hidden sweep_rows"}

MUTANTS = [
    Mutant(
        "GiB called GB",
        "benchmarking",
        "    return size / seconds / 1e9",
        "    return size / seconds / 1024**3",
        RATES | {"hidden algorithm_bandwidth"},
        "this is in GiB/s (2³⁰ bytes). Use GB/s",
    ),
    Mutant(
        "the output of a reduce-scatter for its size",
        "benchmarking",
        '    return input_bytes * world_size if collective in ("all_gather", "gather") else input_bytes',
        """    if collective == "reduce_scatter":
        return input_bytes // world_size
    return input_bytes * world_size if collective in ("all_gather", "gather") else input_bytes""",
        {"hidden array_bytes"},
        "array_bytes('reduce_scatter', ",
    ),
    Mutant(
        "an all-reduce is no more than a reduce-scatter",
        "benchmarking",
        '{"all_reduce": 2 * (world_size - 1) / world_size, "broadcast"',
        '{"all_reduce": (world_size - 1) / world_size, "broadcast"',
        RATES - {"hidden sweep_rows"},
        "for all_reduce, this is exactly half the expected value",
    ),
    Mutant(
        "a broadcast spares its root",
        "benchmarking",
        '"broadcast": 1.0, "reduce": 1.0}',
        '"reduce": 1.0}',
        {"hidden bus_bandwidth", "public sweep"},
        "bus_bandwidth('broadcast',",
    ),
    Mutant(
        "the lecture's reduce-scatter stays four times slower",
        "benchmarking",
        '    return reported * 1024**3 / 1e9 * (world_size if counted == "part" else 1)',
        "    return reported * 1024**3 / 1e9",
        {"hidden usual_bandwidth", "public bandwidths"},
        "the size of one part was used",
    ),
    Mutant(
        "no warm-up",
        "benchmarking",
        "    for _ in range(warm_up):\n        operation()\n",
        "",
        {"public stopwatch", "hidden warm_up"},
        "Is there a warm-up?",
    ),
    Mutant(
        "no barrier",
        "benchmarking",
        "        barrier()\n",
        "",
        {"public stopwatch", "hidden barrier"},
        "So the operation waits for a rank that comes late",
    ),
    Mutant(
        "one barrier for all iterations",
        "benchmarking",
        """    times = []
    for _ in range(iterations):
        synchronize()
        barrier()
""",
        """    times = []
    barrier()
    for _ in range(iterations):
        synchronize()
""",
        {"public stopwatch", "hidden barrier"},
        "a barrier only before the first timed call",
    ),
    Mutant(
        "the barrier is timed",
        "benchmarking",
        "        barrier()\n        start = clock()\n",
        "        start = clock()\n        barrier()\n",
        {"public stopwatch", "hidden barrier"},
        "the barrier was timed",
    ),
    Mutant(
        "stopped before the device has done it",
        "benchmarking",
        "        operation()\n        synchronize()\n        times",
        "        operation()\n        times",
        {"public stopwatch", "hidden synchronize"},
        "only the start of the device's work was timed",
    ),
    Mutant(
        "started while the device is at something else",
        "benchmarking",
        "        synchronize()\n        barrier()\n",
        "        barrier()\n",
        {"public stopwatch", "hidden synchronize"},
        "The device was still busy with earlier work",
    ),
    Mutant(
        "each rank for itself",
        "benchmarking",
        "    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)\n",
        "",
        {"public stopwatch", "hidden slowest_rank"},
        "these are this rank's own times",
    ),
    Mutant(
        "the mean over the ranks",
        "benchmarking",
        "    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)\n",
        """    dist.all_reduce(slowest)
    slowest /= dist.get_world_size()
""",
        {"public stopwatch", "hidden slowest_rank"},
        "the mean over the ranks. A collective ends when its slowest rank ends",
    ),
    Mutant(
        "the mean of the iterations",
        "benchmarking",
        "    return Timing(statistics.median(samples), samples)",
        "    return Timing(statistics.mean(samples), samples)",
        {"public stopwatch", "hidden median"},
        "this is the mean. One slow iteration changes the mean",
    ),
    Mutant(
        "the lower of the two times in the middle",
        "benchmarking",
        "    return Timing(statistics.median(samples), samples)",
        "    return Timing(statistics.median_low(samples), samples)",
        {"hidden median"},
        "the lower of the two middle times",
    ),
    Mutant(
        "one look at the clock for all iterations",
        "benchmarking",
        "        times.append(clock() - start)\n",
        """        times.append(clock() - start)
    times = [sum(times) / iterations] * iterations
""",
        {"public stopwatch", "hidden slowest_rank", "hidden median"},
        "the clock was read once for all calls",
    ),
    Mutant(
        "a clock of its own",
        "benchmarking",
        "    times = []\n    for _",
        "    times, clock = [], time.perf_counter\n    for _",
        WATCH,
        "never called clock(), its argument",
    ),
    Mutant(
        "the times are exchanged while the watch runs",
        "benchmarking",
        "        synchronize()\n        times.append(clock() - start)",
        """        synchronize()
        dist.all_reduce(torch.zeros(1))
        times.append(clock() - start)""",
        {"hidden slowest_rank"},
        "communicates while it times a call",
    ),
    Mutant(
        "the table is there at the end",
        "benchmarking",
        """    return (
        _row(collective, size, world_size, *run(collective, size))
        for collective in collectives
        for size in sizes
    )
""",
        """    return [
        _row(collective, size, world_size, *run(collective, size))
        for collective in collectives
        for size in sizes
    ]
""",
        {"public sweep", "hidden sweep_is_lazy"},
        "runs had ended before the first row was yielded. Yield each row as soon as its run",
    ),
    Mutant(
        "every result is right",
        "benchmarking",
        "    return Row(collective, size, seconds, algbw, busbw, wrong)",
        "    return Row(collective, size, seconds, algbw, busbw, 0)",
        {"public sweep", "hidden sweep_rows"},
        "expected wrong",
    ),
    Mutant(
        "an unknown collective is found when its turn comes",
        "benchmarking",
        """    for collective in collectives:
        _check(collective, world_size)
""",
        "",
        {"hidden sweep_misuse", "public sweep_misuse"},
        "the ValueError comes after",
    ),
    Mutant(
        "a fit of absolute errors",
        "benchmarking",
        """    largest = max(sizes)  # scaled to 0 … 1: columns of similar size give an accurate fit
    rows = torch.stack([1 / t, torch.tensor(sizes, dtype=torch.float64) / largest / t], dim=1)
    ones = torch.ones(len(t), 1, dtype=torch.float64)
    alpha, slope = torch.linalg.lstsq(rows, ones).solution.flatten().tolist()
""",
        """    largest = max(sizes)
    rows = torch.stack(
        [torch.ones_like(t), torch.tensor(sizes, dtype=torch.float64) / largest], dim=1
    )
    alpha, slope = torch.linalg.lstsq(rows, t[:, None]).solution.flatten().tolist()
""",
        {"hidden fit", "public model"},
        "the absolute errors were minimised",
    ),
    Mutant(
        "times that fall make a bandwidth, too",
        "benchmarking",
        """    if slope <= 0:
        raise ValueError(f"times of {seconds} seconds do not grow with the sizes {sizes}")
""",
        "",
        {"hidden fit_misuse", "public model"},
        "The times do not grow with the sizes",
    ),
    Mutant(
        "equal times make a bandwidth wherever rounding has it so",
        "benchmarking",
        "    if len(set(sizes)) < 2 or len(set(seconds)) < 2:\n",
        "    if len(set(sizes)) < 2:\n",
        # The sign is that of a rounding error, so the one case of the public check may miss it.
        {"hidden fit_misuse", "public model"},
        "A fit needs at least two different sizes and two different times.",
    ),
    Mutant(
        "the size of an all-gather is what one rank puts in",
        "benchmarking",
        '    return input_bytes * world_size if collective in ("all_gather", "gather") else input_bytes',
        "    return input_bytes",
        {"public bandwidths", "hidden array_bytes"},
        "array_bytes('all_gather', ",
    ),
    Mutant(
        "a gather is no all-gather",
        "benchmarking",
        '    return input_bytes * world_size if collective in ("all_gather", "gather") else input_bytes',
        '    return input_bytes * world_size if collective == "all_gather" else input_bytes',
        {"hidden array_bytes"},
        "array_bytes('gather', ",
    ),
    Mutant(
        "a scatter of n times the root's tensor",
        "benchmarking",
        '    return input_bytes * world_size if collective in ("all_gather", "gather") else input_bytes',
        '    return input_bytes * world_size if collective in ("all_gather", "gather", "scatter") else input_bytes',
        {"hidden array_bytes"},
        "array_bytes('scatter', ",
    ),
    Mutant(
        "no bytes at all for one rank",
        "benchmarking",
        '    return input_bytes * world_size if collective in ("all_gather", "gather") else input_bytes',
        """    if world_size == 1:
        return 0
    return input_bytes * world_size if collective in ("all_gather", "gather") else input_bytes""",
        {"hidden array_bytes"},
        "got 0",
    ),
    Mutant(
        "all links of all ranks added up",
        "benchmarking",
        """    return algorithm_bandwidth(size, seconds) * factors.get(
        collective, (world_size - 1) / world_size
    )
""",
        """    return algorithm_bandwidth(size, seconds) * factors.get(collective, world_size - 1)
""",
        {"hidden bus_bandwidth", "hidden sweep_rows"},
        "this is n times the expected value. The argument “size” is already the size of the whole",
    ),
    Mutant(
        "the part of one rank for the size",
        "benchmarking",
        "        collective, (world_size - 1) / world_size\n",
        "        collective, (world_size - 1) / world_size**2\n",
        {"hidden bus_bandwidth", "hidden sweep_rows"},
        "divided by n. Use the size of the whole array, not of one rank's part",
    ),
    Mutant(
        "the algorithm's bandwidth for that of the bus",
        "benchmarking",
        """    factors = {"all_reduce": 2 * (world_size - 1) / world_size, "broadcast": 1.0, "reduce": 1.0}
    return algorithm_bandwidth(size, seconds) * factors.get(
        collective, (world_size - 1) / world_size
    )
""",
        "    return algorithm_bandwidth(size, seconds)\n",
        {"public bandwidths", "hidden bus_bandwidth", "hidden sweep_rows"},
        "for all_reduce, this is the algorithm bandwidth",
    ),
    Mutant(
        "a factor for four ranks",
        "benchmarking",
        """    factors = {"all_reduce": 2 * (world_size - 1) / world_size, "broadcast": 1.0, "reduce": 1.0}
""",
        '    factors = {"all_reduce": 1.5, "broadcast": 1.0, "reduce": 1.0}\n',
        {"hidden bus_bandwidth", "public sweep"},
        "bus_bandwidth('all_reduce'",
    ),
    Mutant(
        "no time at all is a division by zero",
        "benchmarking",
        "    if seconds <= 0:\n",
        "    if seconds < 0:\n",
        {"public bandwidths", "hidden bandwidth_misuse"},
        "raised ZeroDivisionError",
    ),
    Mutant(
        "an unknown collective has a bandwidth, too",
        "benchmarking",
        """    if collective not in COLLECTIVES:
        raise ValueError(f"{collective!r} is none of {', '.join(COLLECTIVES)}")
""",
        "",
        {
            "hidden bandwidth_misuse",
            "hidden sweep_misuse",
            "public bandwidth_misuse",
            "public sweep_misuse",
        },
        "expected a ValueError on every rank",
    ),
    Mutant(
        "what is not a part is the whole",
        "benchmarking",
        """    if counted not in ("whole", "part"):
        raise ValueError(f"counted {counted!r} is neither 'whole' nor 'part'")
""",
        "",
        {"hidden bandwidth_misuse", "public bandwidth_misuse"},
        "usual_bandwidth(reported=1.0, world_size=2, counted='half')",
    ),
    Mutant(
        "the lecture's gigabytes stay binary",
        "benchmarking",
        " * 1024**3 / 1e9 * (world_size if",
        " * (world_size if",
        {"hidden usual_bandwidth", "public bandwidths"},
        "this is still in 2³⁰ bytes per second",
    ),
    Mutant(
        "the lecture's gigabytes the other way round",
        "benchmarking",
        " * 1024**3 / 1e9 * (world_size if",
        " * 1e9 / 1024**3 * (world_size if",
        {"hidden usual_bandwidth", "public bandwidths"},
        "where [0] is usual_bandwidth(277.0, 4, 'whole')",
    ),
    Mutant(
        "no look at the number of iterations",
        "benchmarking",
        """    if iterations < 1 or warm_up < 0:
        raise ValueError(f"{warm_up} calls of warm-up and {iterations} iterations")
""",
        "",
        {"hidden stopwatch_misuse", "public stopwatch_misuse"},
        "ValueError does not mention 0",
    ),
    Mutant(
        "the number of iterations is looked at after the warm-up",
        "benchmarking",
        """    if iterations < 1 or warm_up < 0:
        raise ValueError(f"{warm_up} calls of warm-up and {iterations} iterations")
    for _ in range(warm_up):
        operation()
""",
        """    for _ in range(warm_up):
        operation()
    if iterations < 1 or warm_up < 0:
        raise ValueError(f"{warm_up} calls of warm-up and {iterations} iterations")
""",
        {"hidden stopwatch_misuse"},
        "of the operation. Check the arguments first",
    ),
    Mutant(
        "one call of warm-up too many",
        "benchmarking",
        "    for _ in range(warm_up):\n        operation()\n",
        "    for _ in range(warm_up + 1):\n        operation()\n",
        WATCH,
        "times, but warm_up + iterations is",
    ),
    Mutant(
        "a warm-up before every iteration",
        "benchmarking",
        """    for _ in range(warm_up):
        operation()
    times = []
    for _ in range(iterations):
""",
        """    times = []
    for _ in range(iterations):
        for _ in range(warm_up):
            operation()
""",
        {"public stopwatch", "hidden warm_up"},
        "times, but warm_up + iterations is",
    ),
    Mutant(
        "the fastest rank's times",
        "benchmarking",
        """    slowest = torch.tensor(times, dtype=torch.float64, device=device())
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    samples = slowest.tolist()
    return Timing(statistics.median(samples), samples)""",
        """    slowest = torch.tensor(times, dtype=torch.float64, device=device())
    dist.all_reduce(slowest, op=dist.ReduceOp.MIN)
    samples = slowest.tolist()
    return Timing(statistics.median(samples), samples)""",
        {"public stopwatch", "hidden slowest_rank"},
        "the fastest rank's times",
    ),
    Mutant(
        "the largest median of a rank",
        "benchmarking",
        """    slowest = torch.tensor(times, dtype=torch.float64, device=device())
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    samples = slowest.tolist()
    return Timing(statistics.median(samples), samples)""",
        """    slowest = torch.tensor(times, dtype=torch.float64, device=device())
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    own = torch.tensor([statistics.median(times)], dtype=torch.float64, device=device())
    dist.all_reduce(own, op=dist.ReduceOp.MAX)
    samples = slowest.tolist()
    return Timing(own.item(), samples)""",
        {"hidden slowest_rank"},
        "the largest of the ranks' medians",
    ),
    Mutant(
        "only rank 0 knows the slowest rank's times",
        "benchmarking",
        """    slowest = torch.tensor(times, dtype=torch.float64, device=device())
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    samples = slowest.tolist()
    return Timing(statistics.median(samples), samples)""",
        """    slowest = torch.tensor(times, dtype=torch.float64, device=device())
    dist.reduce(slowest, dst=0, op=dist.ReduceOp.MAX)
    samples = slowest.tolist()
    return Timing(statistics.median(samples), samples)""",
        {"public stopwatch", "hidden slowest_rank"},
        "On rank 1",
    ),
    Mutant(
        "the samples are sorted",
        "benchmarking",
        """    slowest = torch.tensor(times, dtype=torch.float64, device=device())
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    samples = slowest.tolist()
    return Timing(statistics.median(samples), samples)""",
        """    slowest = torch.tensor(times, dtype=torch.float64, device=device())
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    samples = sorted(slowest.tolist())
    return Timing(statistics.median(samples), samples)""",
        {"public stopwatch", "hidden slowest_rank", "hidden median"},
        "the samples were sorted",
    ),
    Mutant(
        "the best of all iterations",
        "benchmarking",
        """    slowest = torch.tensor(times, dtype=torch.float64, device=device())
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    samples = slowest.tolist()
    return Timing(statistics.median(samples), samples)""",
        """    slowest = torch.tensor(times, dtype=torch.float64, device=device())
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    samples = slowest.tolist()
    return Timing(min(samples), samples)""",
        {"hidden median", "hidden slowest_rank"},
        "the smallest",
    ),
    Mutant(
        "the upper of the two times in the middle",
        "benchmarking",
        """    slowest = torch.tensor(times, dtype=torch.float64, device=device())
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    samples = slowest.tolist()
    return Timing(statistics.median(samples), samples)""",
        """    slowest = torch.tensor(times, dtype=torch.float64, device=device())
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    samples = slowest.tolist()
    return Timing(statistics.median_high(samples), samples)""",
        {"hidden median"},
        "the upper of the two middle times",
    ),
    Mutant(
        "the barrier is after the call",
        "benchmarking",
        """        synchronize()
        barrier()
        start = clock()
        operation()
        synchronize()
""",
        """        synchronize()
        start = clock()
        operation()
        synchronize()
        barrier()
""",
        {"public stopwatch", "hidden barrier"},
        "the barrier comes after the call",
    ),
    Mutant(
        "only rank 0 comes to the barrier",
        "benchmarking",
        "        barrier()\n        start",
        """        if dist.get_rank() == 0:
            barrier()
        start""",
        {"public stopwatch", "hidden barrier"},
        "the list of samples is wrong",
    ),
    Mutant(
        "all collectives of one size before the next size",
        "benchmarking",
        """        for collective in collectives
        for size in sizes
""",
        """        for size in sizes
        for collective in collectives
""",
        {"public sweep", "hidden sweep_rows"},
        "First run all sizes of the first collective",
    ),
    Mutant(
        "each row comes a run too late",
        "benchmarking",
        """    return (
        _row(collective, size, world_size, *run(collective, size))
        for collective in collectives
        for size in sizes
    )
""",
        """
    def rows():
        waiting = None
        for collective in collectives:
            for size in sizes:
                row = _row(collective, size, world_size, *run(collective, size))
                if waiting:
                    yield waiting
                waiting = row
        yield waiting

    return rows()
""",
        {"public sweep", "hidden sweep_is_lazy"},
        "2 runs had ended before the first row was yielded",
    ),
    Mutant(
        "the bandwidths change places",
        "benchmarking",
        "    return Row(collective, size, seconds, algbw, busbw, wrong)",
        "    return Row(collective, size, seconds, busbw, algbw, wrong)",
        {"hidden sweep_rows"},
        "expected algbw",
    ),
    Mutant(
        "a line through the first and the last time",
        "benchmarking",
        """    rows = torch.stack([1 / t, torch.tensor(sizes, dtype=torch.float64) / largest / t], dim=1)
    ones = torch.ones(len(t), 1, dtype=torch.float64)
    alpha, slope = torch.linalg.lstsq(rows, ones).solution.flatten().tolist()
""",
        """    slope = (seconds[-1] - seconds[0]) / (sizes[-1] - sizes[0]) * largest
    alpha = seconds[0] - slope * sizes[0] / largest
""",
        {"hidden fit", "public model"},
        "is wrong",
    ),
    Mutant(
        "the relative errors of half the weight",
        "benchmarking",
        """    rows = torch.stack([1 / t, torch.tensor(sizes, dtype=torch.float64) / largest / t], dim=1)
    ones = torch.ones(len(t), 1, dtype=torch.float64)
    alpha, slope = torch.linalg.lstsq(rows, ones).solution.flatten().tolist()
""",
        """    rows = torch.stack(
        [1 / t.sqrt(), torch.tensor(sizes, dtype=torch.float64) / largest / t.sqrt()], dim=1
    )
    alpha, slope = torch.linalg.lstsq(rows, t.sqrt()[:, None]).solution.flatten().tolist()
""",
        {"hidden fit", "public model"},
        "minimises Σ (error²/t), not Σ (error/t)²",
    ),
    Mutant(
        "the slope for the bandwidth",
        "benchmarking",
        "    return alpha, largest / slope",
        "    return alpha, slope / largest",
        {"public model", "hidden fit"},
        "The bandwidth is its inverse",
    ),
    Mutant(
        "one size twice makes two",
        "benchmarking",
        "    if len(set(sizes)) < 2 or",
        "    if len(sizes) < 2 or",
        {"hidden fit_misuse", "public model"},
        "sizes=[1024, 1024], seconds=[1.0, 2.0]",
    ),
    Mutant(
        "no latency in the prediction",
        "benchmarking",
        "    return alpha + size / beta",
        "    return size / beta",
        {"public model", "hidden predictions"},
        "Add the latency",
    ),
    Mutant(
        "half the peak where the latency is paid twice",
        "benchmarking",
        "    return alpha * beta\n",
        "    return alpha * beta / 2\n",
        {"public model", "hidden predictions"},
        "is wrong",
    ),
    Mutant(
        "a sweep that yields nothing",
        "benchmarking",
        """    return (
        _row(collective, size, world_size, *run(collective, size))
        for collective in collectives
        for size in sizes
    )
""",
        """    for collective in collectives:
        for size in sizes:
            print(_row(collective, size, world_size, *run(collective, size)))
""",
        {"public sweep", "hidden sweep_rows", "hidden sweep_is_lazy"},
        "Does it contain a yield?",
    ),
    Mutant(
        "a latency is never negative",
        "benchmarking",
        "    return alpha, largest / slope",
        "    return max(alpha, 0.0), largest / slope",
        {"hidden fit"},
        "a negative α was replaced by 0",
    ),
    Mutant(
        "a prediction without a negative latency",
        "benchmarking",
        "    return alpha + size / beta",
        "    return max(alpha, 0.0) + size / beta",
        {"hidden predictions"},
        "a negative α was replaced by 0",
    ),
    Mutant(
        "the last time has to be larger than the first",
        "benchmarking",
        "    if slope <= 0:\n",
        "    if slope <= 0 or seconds[-1] <= seconds[0]:\n",
        {"hidden fit"},
        "do not grow with the sizes",
    ),
    Mutant(
        "only the last time of a size",
        "benchmarking",
        "    t = torch.tensor(seconds, dtype=torch.float64)\n",
        """    sizes, seconds = zip(*dict(zip(sizes, seconds)).items())
    t = torch.tensor(seconds, dtype=torch.float64)
""",
        {"hidden fit"},
        "only one time of each size was used, the last one",
    ),
    Mutant(
        "no two times may be equal",
        "benchmarking",
        "    if len(set(sizes)) < 2 or len(set(seconds)) < 2:\n",
        "    if len(set(sizes)) < 2 or len(set(seconds)) < len(seconds):\n",
        {"hidden fit", "public model"},
        "two different sizes and two different times are needed",
    ),
    Mutant(
        "as many of the sizes and times as there are of both",
        "benchmarking",
        '        raise ValueError(f"{len(sizes)} sizes and {len(seconds)} times")\n',
        "        sizes, seconds = sizes[: len(seconds)], seconds[: len(sizes)]\n",
        {"hidden fit_misuse", "public model"},
        "sizes=[1, 2, 3], seconds=[1.0, 2.0]",
    ),
    Mutant(
        "more times than sizes are cut off",
        "benchmarking",
        '        raise ValueError(f"{len(sizes)} sizes and {len(seconds)} times")\n',
        """        if len(sizes) > len(seconds):
            raise ValueError(f"{len(sizes)} sizes and {len(seconds)} times")
        seconds = seconds[: len(sizes)]
""",
        {"hidden fit_misuse"},
        "sizes=[1, 2], seconds=[1.0, 2.0, 3.0]",
    ),
    Mutant(
        "no size at all is an IndexError",
        "benchmarking",
        "    if len(sizes) != len(seconds):\n",
        "    sizes[0]\n    if len(sizes) != len(seconds):\n",
        {"hidden fit_misuse"},
        "raised IndexError",
    ),
    Mutant(
        "no bytes have no bandwidth",
        "benchmarking",
        "    if seconds <= 0:\n",
        "    if seconds <= 0 or size == 0:\n",
        {"hidden algorithm_bandwidth"},
        "raised ValueError",
    ),
    Mutant(
        "whole bytes a second",
        "benchmarking",
        "    return size / seconds / 1e9",
        "    return size // seconds / 1e9",
        {"hidden algorithm_bandwidth", "hidden bus_bandwidth", "hidden sweep_rows"},
        "Did you use // instead of /?",
    ),
    Mutant(
        "the lecture's part and whole change places on four ranks",
        "benchmarking",
        '(world_size if counted == "part" else 1)\n',
        '(world_size if (counted == "part") != (world_size == 4) else 1)\n',
        {"hidden usual_bandwidth", "public bandwidths"},
        "a figure for the “whole” array was multiplied by n. Multiply by n only if counted is “part”",
    ),
    Mutant(
        "the lecture's array has one part less",
        "benchmarking",
        '(world_size if counted == "part" else 1)\n',
        '(world_size - 1 if counted == "part" else 1)\n',
        {"hidden usual_bandwidth", "public bandwidths"},
        "the figure for a “part” was multiplied by n − 1",
    ),
    Mutant(
        "a negative world size is one",
        "benchmarking",
        """    if world_size < 1:
        raise ValueError(f"a world size of {world_size}")
    return reported""",
        """    if world_size == 0:
        raise ValueError(f"a world size of {world_size}")
    return reported""",
        {"hidden bandwidth_misuse", "public bandwidth_misuse"},
        "expected a ValueError on every rank, but rank 0 returned float",
    ),
    Mutant(
        "a negative number of iterations is none",
        "benchmarking",
        "    if iterations < 1 or warm_up < 0:\n",
        "    if iterations == 0 or warm_up < 0:\n",
        {"hidden stopwatch_misuse"},
        "ValueError does not mention -",
    ),
    Mutant(
        "the end is read from another clock",
        "benchmarking",
        "        times.append(clock() - start)\n",
        "        times.append(time.perf_counter() - start)\n",
        WATCH,
        "called clock(), its argument, but not after its last timed call",
    ),
    Mutant(
        "from the first start to the last end of any rank",
        "benchmarking",
        """        times.append(clock() - start)
    slowest = torch.tensor(times, dtype=torch.float64, device=device())
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    samples = slowest.tolist()
""",
        """        times.append((-start, clock()))
    slowest = torch.tensor(times, dtype=torch.float64, device=device())
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    samples = slowest.sum(dim=1).tolist()
""",
        WATCH,
        "the last end minus the first start over all ranks",
    ),
    Mutant(
        "the time since the last end",
        "benchmarking",
        """        start = clock()
        operation()
        synchronize()
        times.append(clock() - start)
""",
        """        if not times:
            last = clock()
        operation()
        synchronize()
        now = clock()
        times.append(now - last)
        last = now
""",
        {"public stopwatch", "hidden barrier"},
        "from the second call on",
    ),
    Mutant(
        "calls of the warm-up have samples, too",
        "benchmarking",
        """    for _ in range(warm_up):
        operation()
    times = []
    for _ in range(iterations):
""",
        "    times = []\n    for _ in range(warm_up + iterations):\n",
        {"public stopwatch", "hidden warm_up"},
        "one sample for each iteration. Are calls of the warm-up timed?",
    ),
    Mutant(
        "no time is looked at where nothing is sent",
        "benchmarking",
        """    factors = {"all_reduce": 2 * (world_size - 1) / world_size, "broadcast": 1.0, "reduce": 1.0}
""",
        """    if world_size == 1 and collective not in ("broadcast", "reduce"):
        return 0.0
    factors = {"all_reduce": 2 * (world_size - 1) / world_size, "broadcast": 1.0, "reduce": 1.0}
""",
        {"hidden bandwidth_misuse"},
        "expected a ValueError",
    ),
    Mutant(
        "the next measurement takes the samples' place",
        "benchmarking",
        "    samples = slowest.tolist()\n    return Timing(",
        """    samples = vars(stopwatch).setdefault("samples", [])
    samples[:] = slowest.tolist()
    return Timing(""",
        {"hidden stopwatch_twice"},
        "Make a new list for each measurement",
    ),
    Mutant(
        "nothing after a size for which there is no memory",
        "benchmarking",
        """    return (
        _row(collective, size, world_size, *run(collective, size))
        for collective in collectives
        for size in sizes
    )
""",
        """
    def rows():
        for collective in collectives:
            for size in sizes:
                seconds, wrong = run(collective, size)
                yield _row(collective, size, world_size, seconds, wrong)
                if seconds == float("inf"):
                    break

    return rows()
""",
        {"hidden sweep_rows"},
        "the sweep yielded 4 rows. It must yield one row for each collective at each size, 6 in all",
    ),
    Mutant(
        "sizes are squared in int64",
        "benchmarking",
        """    largest = max(sizes)  # scaled to 0 … 1: columns of similar size give an accurate fit
    rows = torch.stack([1 / t, torch.tensor(sizes, dtype=torch.float64) / largest / t], dim=1)
    ones = torch.ones(len(t), 1, dtype=torch.float64)
    alpha, slope = torch.linalg.lstsq(rows, ones).solution.flatten().tolist()
""",
        """    s, w, largest = torch.tensor(sizes), t**-2, 1
    matrix = torch.stack([w.sum(), (w * s).sum(), (w * s).sum(), (w * s**2).sum()]).reshape(2, 2)
    alpha, slope = torch.linalg.solve(matrix, torch.stack([(1 / t).sum(), (s / t).sum()])).tolist()
""",
        {"hidden fit"},
        "[6] (α in units of",
    ),
    Mutant(
        "the times pass through float32",
        "benchmarking",
        "    t = torch.tensor(seconds, dtype=torch.float64)\n",
        "    t = torch.tensor(seconds).double()\n",
        {"hidden fit"},
        "Likely: did you compute in float64?",
    ),
    Mutant(
        "no predicted time is negative",
        "benchmarking",
        "    return alpha + size / beta",
        "    return max(alpha + size / beta, 0.0)",
        {"hidden predictions"},
        "a negative time was replaced by 0",
    ),
    Mutant(
        "an exchange after each call, and then no waiting for the device",
        "benchmarking",
        """        synchronize()
        barrier()
        start = clock()
        operation()
        synchronize()
        times.append(clock() - start)
    slowest = torch.tensor(times, dtype=torch.float64, device=device())
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    samples = slowest.tolist()
""",
        """        if not times:
            synchronize()
        barrier()
        start = clock()
        operation()
        synchronize()
        times.append(torch.tensor(clock() - start, dtype=torch.float64, device=device()))
        dist.all_reduce(times[-1], op=dist.ReduceOp.MAX)
    samples = [float(slowest) for slowest in times]
""",
        {"hidden synchronize_before_the_barrier"},
        "between an exchange of times and the next call of the operation",
    ),
    Mutant(
        "a device awaited after the barrier",
        "benchmarking",
        "        synchronize()\n        barrier()\n        start",
        "        barrier()\n        synchronize()\n        start",
        {"hidden synchronize_before_the_barrier"},
        "called synchronize after the barrier, and not before it",
    ),
    Mutant(
        "after a warm-up, one barrier and no waiting for the device",
        "benchmarking",
        """        synchronize()
        barrier()
        start = clock()
        operation()
        synchronize()
""",
        """        if not warm_up or not times:
            synchronize()
            barrier()
        start = clock()
        operation()
        if not warm_up:
            synchronize()
""",
        {"hidden barrier", "hidden synchronize"},
        "a barrier only before the first timed call",
    ),
    Mutant(
        "the slowest rank only where there is no warm-up",
        "benchmarking",
        "    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)\n",
        """    if not warm_up:
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
""",
        {"hidden slowest_rank"},
        "these are this rank's own times",
    ),
    Mutant(
        "the times are exchanged beside the next timed call",
        "benchmarking",
        """        times.append(clock() - start)
    slowest = torch.tensor(times, dtype=torch.float64, device=device())
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    samples = slowest.tolist()
""",
        """        times.append(torch.tensor(clock() - start, dtype=torch.float64, device=device()))
        times[-1].work = dist.all_reduce(times[-1], op=dist.ReduceOp.MAX, async_op=True)
    for sample in times:
        sample.work.wait()
    samples = torch.stack(times).tolist()
""",
        {"hidden slowest_rank"},
        "did not wait for it before the next timed call",
    ),
    Mutant(
        "a stopwatch returns a tuple without names",
        "benchmarking",
        "    return Timing(statistics.median(samples), samples)",
        "    return statistics.median(samples), samples",
        {"hidden median"},
        "stopwatch did not return a Timing.",
    ),
    Mutant(
        "a row without names",
        "benchmarking",
        "    return Row(collective, size, seconds, algbw, busbw, wrong)",
        "    return collective, size, seconds, algbw, busbw, wrong",
        {"hidden sweep_rows"},
        "sweep did not yield a Row.",
    ),
    Mutant(
        "a sweep takes the collectives out of its list",
        "benchmarking",
        """        for collective in collectives
        for size in sizes
    )
""",
        """        for collective in [collectives.pop(0) for _ in range(len(collectives))]
        for size in sizes
    )
""",
        {"hidden sweep_rows"},
        "changed a list that it was given",
    ),
    Mutant(
        "a fit sorts its times",
        "benchmarking",
        "    t = torch.tensor(seconds, dtype=torch.float64)\n",
        """    pairs = sorted(zip(sizes, seconds))
    sizes[:], seconds[:] = [size for size, _ in pairs], [time for _, time in pairs]
    t = torch.tensor(seconds, dtype=torch.float64)
""",
        {"hidden fit"},
        "changed a list that it was given",
    ),
    Mutant(
        "a fit compares the smallest and the largest size only",
        "benchmarking",
        "    if slope <= 0:\n",
        "    if max(zip(sizes, seconds))[1] <= min(zip(sizes, seconds))[1]:\n",
        {"hidden fit_misuse"},
        "[1000, 2000, 3000]",
    ),
    Mutant(
        "the slowest of a rank and its neighbours",
        "benchmarking",
        "    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)\n",
        "    if (n := dist.get_world_size()) > 1:\n        rank, own, others = dist.get_rank(), slowest.clone(), torch.empty(2, len(times)).double()\n        for k, step in enumerate((1, -1)):\n            work = dist.isend(own, (rank + step) % n)\n            dist.recv(others[k], (rank - step) % n)\n            work.wait()\n        slowest = torch.maximum(own, others.amax(0))\n",
        {"hidden slowest_rank"},
        "expected",
    ),
    Mutant(
        "one rank makes any number of iterations",
        "benchmarking",
        "    if iterations < 1 or warm_up < 0:\n",
        "    if dist.get_world_size() > 1 and (iterations < 1 or warm_up < 0):\n",
        {"hidden stopwatch_misuse"},
        "ValueError does not mention 0",
    ),
    Mutant(
        "the other ranks call the operation before they refuse",
        "benchmarking",
        "    if iterations < 1 or warm_up < 0:\n",
        "    if dist.get_rank() and iterations < 1:\n        operation()\n    if iterations < 1 or warm_up < 0:\n",
        {"hidden stopwatch_misuse"},
        "rank 1's ValueError comes after",
    ),
    Mutant(
        "the usual bandwidth of one rank may be of anything",
        "benchmarking",
        '    if counted not in ("whole", "part"):\n',
        '    if world_size != 1 and counted not in ("whole", "part"):\n',
        {"hidden bandwidth_misuse"},
        "expected a ValueError",
    ),
    Mutant(
        "no barrier after four timed calls, and no look at the device after three",
        "benchmarking",
        """    for _ in range(iterations):
        synchronize()
        barrier()
        start = clock()
        operation()
        synchronize()
""",
        """    for i in range(iterations):
        if i < 3:
            synchronize()
        if i < 4:
            barrier()
        start = clock()
        operation()
        if i < 3:
            synchronize()
""",
        {"hidden barrier", "hidden synchronize"},
        "entries differ",
    ),
    Mutant(
        "each rank for itself after more than four timed calls",
        "benchmarking",
        "    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)\n",
        "    dist.all_reduce(slowest.clone() if iterations > 4 else slowest, op=dist.ReduceOp.MAX)\n",
        {"hidden slowest_rank"},
        "own times",
    ),
    Mutant(
        "the lower of the two times in the middle of more than four",
        "benchmarking",
        "    return Timing(statistics.median(samples), samples)\n",
        "    median = statistics.median_low if iterations > 4 else statistics.median\n"
        "    return Timing(median(samples), samples)\n",
        {"hidden median"},
        "the lower of the two middle times",
    ),
    Mutant(
        "at most five calls of warm-up",
        "benchmarking",
        "    for _ in range(warm_up):\n",
        "    for _ in range(min(warm_up, 5)):\n",
        {"hidden warm_up"},
        "rank 0 called the operation",
    ),
    Mutant(
        "one list for all measurements of a number of samples, except three",
        "benchmarking",
        "    samples = slowest.tolist()\n",
        """    samples = slowest.tolist()
    if iterations != 3:
        kept = stopwatch.__dict__.setdefault(iterations, samples)
        kept[:] = samples
        samples = kept
""",
        {"hidden stopwatch_twice"},
        "the second measurement, which overwrote",
    ),
    Mutant(
        "a bus only of 1, 2, 3, 4 and 8 ranks",
        "benchmarking",
        "    factors = {",
        """    if world_size not in (1, 2, 3, 4, 8):
        return algorithm_bandwidth(size, seconds)
    factors = {""",
        {"hidden bus_bandwidth"},
        "this is the algorithm bandwidth",
    ),
    Mutant(
        "GB where one rank asks, and GiB where several do",
        "benchmarking",
        "    return size / seconds / 1e9\n",
        "    many = dist.is_initialized() and dist.get_world_size() > 1\n"
        "    return size / seconds / (2**30 if many else 1e9)\n",
        {"hidden algorithm_bandwidth", "hidden bus_bandwidth", "hidden sweep_rows"},
        "GiB",
    ),
    Mutant(
        "only the first and the last collective of a sweep are looked at, and 12 rows come in time",
        "benchmarking",
        """    for collective in collectives:
        _check(collective, world_size)
    return (
        _row(collective, size, world_size, *run(collective, size))
        for collective in collectives
        for size in sizes
    )
""",
        """    for collective in (*collectives[:1], *collectives[-1:]):
        _check(collective, world_size)
    asked = [(collective, size) for collective in collectives for size in sizes]

    def rows():
        for pair in asked[:12]:
            yield _row(*pair, world_size, *run(*pair))
        yield from [_row(*pair, world_size, *run(*pair)) for pair in asked[12:]]

    return rows()
""",
        {"hidden sweep_is_lazy", "hidden sweep_misuse"},
        "runs had ended before",
    ),
]
