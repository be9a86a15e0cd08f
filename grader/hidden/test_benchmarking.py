"""Part 2 · Measuring bandwidth: the hidden checks.

The grader simulates clocks, devices and operations, so that nothing depends on real speed.
"""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check.api import Tolerance, call, on_gloo, per_rank, rounding
from grader.reference import bandwidth as truth
from grader.reference import benchmark_rows as table_rows
from grader.reference import stopwatches
from grader.reference.counting import counted, often
from grader.reference.stopwatches import events

SIZES = (1, 2, 3, 4, 8)
CLOSE = rounding(np.float64)
# Ranks may send each other their times in float32, which is exact enough for any stopwatch.
TIMES = rounding(np.float32)
WHOLE_BYTES = "this is rounded down to whole bytes per second. Did you use // instead of /?"
NEGATIVE = "a negative α was replaced by 0. Keep it negative"
FIT = Tolerance(1e-4, "a least-squares fit of two unknowns, by any algorithm")


def numbers(values):
    return np.array([table_rows.as_float(value) for value in values])


def ask(world, function, cases, expected, mistakes=()):
    """Call a function once for each case, on one rank, and compare the list of all answers.

    Each of the ``mistakes`` is a pair: a sentence, and the answers of a function with this mistake.
    """
    (run,) = world(1, call(f"benchmarking.{function}", *cases, driver="in_turn"))
    answers(run, function, cases, expected, mistakes)


def answers(run, function, cases, expected, mistakes):
    """Compare the answers of a run, as ``ask`` does. The message names the first wrong call."""
    pairs = zip(map(table_rows.as_float, run.answers(len(cases))), expected)
    wrong = [
        i for i, (answer, due) in enumerate(pairs) if not abs(answer - due) <= 1e-12 * abs(due)
    ]
    # A mistake may change the answers of only some of the calls.
    known = {
        sentence: numbers([values[i] if i in wrong else due for i, due in enumerate(expected)])
        for sentence, values in mistakes
    }
    which = f", where [{wrong[0]}] is {function}{cases[wrong[0]]}," if wrong else ""
    label = f"the list of answers{which}"
    run.returns(
        numbers(expected), tolerance=CLOSE, select=numbers, label=label, known_mistakes=[known]
    )


def refuses(world, function, *cases):
    """Fail unless each case raises a ValueError whose message contains the case's last entry."""
    runs = world(
        1, *(call(f"benchmarking.{function}", *case, may_raise=True) for *case, _ in cases)
    )
    for run, (*_, words) in zip(runs, cases):
        run.raises_value_error(words)


@number("2.1")
@weight(1.0)
def test_array_bytes(world, rng):
    """array_bytes returns the size of the whole array, for every collective and 1 to 8 ranks"""
    cases = [(c, int(rng.integers(1, 9999)) * 4, n) for c in truth.COLLECTIVES for n in SIZES]
    cases += [("all_gather", 0, 4), ("all_gather", 10, 4)]
    (run,) = world(1, call("benchmarking.array_bytes", *cases, driver="in_turn"))
    for case, got in zip(cases, run.answers(len(cases))):
        due = truth.array_bytes(*case)
        run.require(
            table_rows.as_float(got) == due, f"array_bytes{case}: expected {due}, got {got!r:.80}"
        )


@number("2.1")
@weight(0.75)
def test_algorithm_bandwidth(world, rng):
    """algorithm_bandwidth returns decimal gigabytes per second"""
    cases = [(int(rng.integers(1, 10**10)), float(rng.uniform(1e-5, 3))) for _ in range(10)]
    cases += [(0, 1.0), (2**40, 500.0)]
    right = [truth.algorithm_bandwidth(*case) for case in cases]
    gib = [value * 1e9 / 1024**3 for value in right]
    whole = [size // seconds / 1e9 for size, seconds in cases]
    mistakes = [
        ("this was divided by 1024³ and called GB/s. A GB has 10⁹ bytes", gib),
        (WHOLE_BYTES, whole),
    ]
    ask(world, "algorithm_bandwidth", cases, right, mistakes)


@number("2.1")
@weight(1.75)
def test_bus_bandwidth(world, rng):
    """bus_bandwidth uses the factor that nccl-tests documents, for every collective and 1 to 8
    ranks
    """
    asked = [
        [(collective, int(rng.integers(1, 10**10)), n, float(rng.uniform(1e-5, 3))) for n in SIZES]
        for collective in truth.COLLECTIVES
    ]
    asked = [[*cases, (cases[0][0], 0, 2, 1.0), (cases[0][0], 2**40, 4, 500.0)] for cases in asked]
    runs = world(
        1, *(call("benchmarking.bus_bandwidth", *cases, driver="in_turn") for cases in asked)
    )
    for collective, cases, run in zip(truth.COLLECTIVES, asked, runs):
        ranks = [n for _, _, n, _ in cases]
        right = [truth.bus_bandwidth(*case) for case in cases]
        algorithm = [truth.algorithm_bandwidth(size, seconds) for _, size, _, seconds in cases]
        again = "the size was multiplied by n. It is already the size of the whole array"
        part = "the size was divided by n. Use the size of the whole array, not of one rank's part"
        mistakes = [
            ("this is the algorithm bandwidth", algorithm),
            ("this is exactly twice the expected value", [2 * value for value in right]),
            ("this is exactly half the expected value", [value / 2 for value in right]),
            (again, [value * n for value, n in zip(right, ranks)]),
            (part, [value / n for value, n in zip(right, ranks)]),
            (WHOLE_BYTES, [s // t / 1e9 * truth.FACTORS[collective](n) for _, s, n, t in cases]),
        ]
        answers(
            run,
            "bus_bandwidth",
            cases,
            right,
            [(f"for {collective}, {name}", wrong) for name, wrong in mistakes],
        )


@number("2.1")
@weight(0.75)
def test_usual_bandwidth(world, rng):
    """usual_bandwidth converts bandwidths to the usual convention, for example the lecture's 277
    and 70 “GB/s”
    """
    cases = [(277.0, 4, "whole"), (70.0, 4, "part")]
    cases += [
        (float(rng.uniform(1, 500)), n, counted) for n in SIZES for counted in ("whole", "part")
    ]
    cases += [(0.0, 2, "part")]
    right = [r * 1.073741824 * (n if counted == "part" else 1) for r, n, counted in cases]
    binary = [value / 1.073741824 for value in right]
    same = [r * 1.073741824 for r, _, _ in cases]
    mistakes = [
        ("this is still in units of 2³⁰ bytes, not of 10⁹", binary),
        ("the size of one part was used. The whole array has n parts", same),
        (
            "a figure for the “whole” array was multiplied by n. Multiply by n only if counted is"
            " “part”",
            [v * (n if c == "whole" else 1) for v, (_, n, c) in zip(same, cases)],
        ),
        (
            "the size of a part was multiplied by n − 1. An array has n parts",
            [v * (n - 1 if c == "part" else 1) for v, (_, n, c) in zip(same, cases)],
        ),
    ]
    ask(world, "usual_bandwidth", cases, right, mistakes)


@number("2.1")
@weight(0.125)
def test_bandwidth_misuse(world, rng):
    """An unknown collective, a wrong “counted”, a time ≤ 0 or a world size ≤ 0 raises ValueError
    with the value
    """
    refuses(
        world,
        "array_bytes",
        (truth.NO_COLLECTIVE, 4, 2, truth.NO_COLLECTIVE),
        ("reduce", 4, 0, "0"),
        ("all_gather", 4, -2, "-2"),
        (truth.NO_COLLECTIVE, 4, 1, truth.NO_COLLECTIVE),
    )
    refuses(world, "algorithm_bandwidth", (4, 0.0, "0"), (4, -1.5, "-1.5"))
    refuses(
        world,
        "bus_bandwidth",
        (truth.NO_COLLECTIVE, 4, 2, 1.0, truth.NO_COLLECTIVE),
        (truth.NO_COLLECTIVE, 4, 1, 1.0, truth.NO_COLLECTIVE),
        ("all_reduce", 4, -3, 1.0, "-3"),
        ("broadcast", 4, 0, 1.0, "0"),
        ("all_reduce", 4, 2, 0.0, "0"),
        ("broadcast", 4, 1, -1.5, "-1.5"),
        # One rank moves nothing, so the time may have no effect on the result. Even then an
        # impossible time must be refused.
        *((collective, 4, 1, 0.0, "0") for collective in truth.COLLECTIVES),
    )
    refuses(
        world,
        "usual_bandwidth",
        (1.0, 2, "half", "half"),
        (1.0, 1, "half", "half"),
        (1.0, 0, "part", "0"),
        (1.0, -2, "whole", "-2"),
    )


# ——— 2.2: the stopwatch


def watch(
    calls,
    warm_up,
    asynchronous=False,
    barrier_takes=0.0,
    late=0.0,
    busy=0.0,
    may_raise=False,
    iterations=None,
    measured_again=False,
):
    """Return the request for a call of the student's stopwatch.

    ``calls[rank]`` has the seconds that each call of the operation takes on this rank. By default,
    ``iterations`` is the number of calls after the warm-up. The docstrings of
    ``wire.callbacks.Bench`` and ``rank.drivers.benchmarking.timed`` explain the other options.
    """
    iterations = len(calls[0]) - warm_up if iterations is None else iterations
    options = {
        "asynchronous": asynchronous,
        "barrier_takes": barrier_takes,
        "late": late,
        "busy": busy,
    }
    options |= {"calls": per_rank(*map(tuple, calls)), "warm_up": warm_up, "iterations": iterations}
    options |= {"measured_again": measured_again}
    return call("benchmarking.stopwatch", driver="timed", may_raise=may_raise, **options)


def require_samples(run, calls, warm_up, mistakes, last=None):
    """Fail unless every rank returned the samples of these calls, and the median of the samples.

    In the dict ``mistakes``, each key is the sentence that describes a mistake, and its value has
    the wrong samples of every rank. ``last`` is a dict of mistakes that give the right samples, but
    a wrong median. Each key is the sentence that describes a mistake, and its value is the median.
    """
    n, right = len(calls), np.max(calls, axis=0)[warm_up:]
    stopwatches.require_looks(run, warm_up, len(right))
    mistakes = mistakes | {stopwatches.ACROSS: [stopwatches.across_clocks(calls, warm_up)] * n}
    known = [
        {name: np.array(samples[rank], float) for name, samples in mistakes.items()}
        for rank in range(n)
    ]
    run.returns(
        *[right] * n,
        tolerance=TIMES,
        select=lambda r: numbers(r[1]),
        label="the list of samples",
        known_mistakes=known,
    )
    last = {name: np.array(time) for name, time in (last or {}).items()}
    medians = [
        last | {name: np.array(np.median(values)) for name, values in of_rank.items()}
        for of_rank in known
    ]
    median = np.array(np.median(right))
    run.returns(
        *[median] * n,
        tolerance=TIMES,
        select=lambda r: np.array(table_rows.as_float(r[0])),
        label="the time",
        known_mistakes=medians,
    )


@number("2.2")
@weight(1.0)
def test_warm_up(world, rng):
    """stopwatch does not time the warm-up calls, and calls the operation exactly warm_up +
    iterations times
    """
    cases = [(2, 4), (0, 3), (5, 1)]
    timed = [float(rng.uniform(1, 2))] * 4
    calls = [[50.0] * warm_up + timed[:iterations] for warm_up, iterations in cases]
    runs = world(2, *(watch([own] * 2, warm_up) for own, (warm_up, _) in zip(calls, cases)))
    for run, own, (warm_up, iterations) in zip(runs, calls, cases):
        cold = {"the warm-up calls were timed": [own[:iterations]] * 2} if warm_up else {}
        require_samples(run, [own] * 2, warm_up, cold)


TIMED_THE_LAUNCH = (
    "only the start of the device's work was timed. Synchronise before you stop the clock"
)
STILL_BUSY = "the device was still busy with earlier work. Synchronise before you start the clock"


def _with_warm_up(rng):
    """Return the numbers of warm-up calls of two runs: 0, and a number drawn from 1 to 3."""
    return 0, int(rng.integers(1, 4))


@number("2.2")
@weight(1.0)
def test_barrier(world, rng):
    """stopwatch calls barrier before each timed call, and does not time the barrier"""
    right = [float(rng.uniform(1, 2))] * 4
    meeting, late = float(rng.uniform(90, 110)), float(rng.uniform(900, 1100))
    cases = [(warm_up, [50.0] * warm_up + right) for warm_up in _with_warm_up(rng)]
    runs = world(
        2, *(watch([own] * 2, warm_up, barrier_takes=meeting, late=late) for warm_up, own in cases)
    )
    unmet = [t + late for t in right]
    mistakes = {
        "the barrier was timed": [[t + meeting for t in right]] * 2,
        "there is no barrier before the call. So the operation waits for a rank that comes late": (
            [unmet] * 2
        ),
        "there is a barrier only before the first timed call. Each call needs its own barrier": [
            [right[0], *unmet[1:]]
        ]
        * 2,
        "the barrier comes after the call. Put it before the call, before the clock starts": (
            [[unmet[0] + meeting, *(t + meeting for t in right[1:])]] * 2
        ),
        (
            "from the second call on, the barrier is part of the measured time. Read the clock"
            " before each call, after its barrier"
        ): ([[right[0], *(t + meeting for t in right[1:])]] * 2),
    }
    for run, (warm_up, own) in zip(runs, cases):
        require_samples(run, [own] * 2, warm_up, mistakes)
        require_meetings(run, warm_up)


@number("2.2")
@weight(0.75)
def test_synchronize(world, rng):
    """stopwatch starts the clock when the device is idle, and stops it when the device has done the
    operation
    """
    right = [float(rng.uniform(1, 2))] * 3
    busy = float(rng.uniform(60, 80))
    cases = [(warm_up, [50.0] * warm_up + right) for warm_up in _with_warm_up(rng)]
    runs = world(
        2, *(watch([own] * 2, warm_up, asynchronous=True, busy=busy) for warm_up, own in cases)
    )
    launch = 0.001
    for run, (warm_up, own) in zip(runs, cases):
        only_launched = [launch] * 3
        with_earlier_work = [right[0] + busy + (50.0 - launch) * warm_up, *right[1:]]
        mistakes = {TIMED_THE_LAUNCH: [only_launched] * 2, STILL_BUSY: [with_earlier_work] * 2}
        require_samples(run, [own] * 2, warm_up, mistakes)


@number("2.2")
@weight(0.25)
def test_synchronize_before_the_barrier(world, rng):
    """stopwatch synchronizes before each barrier, and also between an exchange of times and the
    next call
    """
    cases = [(rng.uniform(1, 2, warm_up + 3).tolist(), warm_up) for warm_up in _with_warm_up(rng)]
    runs = world(2, *(watch([own] * 2, warm_up, asynchronous=True) for own, warm_up in cases))
    for run, (_, warm_up) in zip(runs, cases):
        run.values()
        for rank in range(2):
            _require_synchronized_before_barrier(run, rank, warm_up)


@number("2.2")
@weight(1.0)
def test_slowest_rank(world, rng):
    """stopwatch returns the slowest rank's times on every rank, and sends nothing while the clock
    runs
    """
    for n in (1, 2, 3, 4):
        cases = []
        for warm_up in _with_warm_up(rng):
            timed = _times(rng, n)
            cases.append((warm_up, timed, [[50.0] * warm_up + own for own in timed]))
        runs = world(n, *(watch(calls, warm_up) for warm_up, _, calls in cases))
        for run, (warm_up, timed, calls) in zip(runs, cases):
            require_slowest(run, warm_up, timed, calls)


def require_slowest(run, warm_up, timed, calls):
    """Fail unless each sample is the slowest rank's time, and no rank communicates while timing.

    ``calls`` has the times of all calls, and ``timed`` those after the warm-up.
    """
    n = len(timed)
    mean, least = np.mean(timed, axis=0), np.min(timed, axis=0)
    wrong = {
        (
            "these are this rank's own times. Every rank must return, for each call, the time"
            " of the slowest rank"
        ): timed,
        "this is the mean over the ranks. A collective ends when its slowest rank ends": (
            [mean] * n
        ),
        "these are the fastest rank's times. Take the slowest rank's times": [least] * n,
    }
    last = {
        (
            "this is the largest of the ranks' medians. Take the slowest rank's time of"
            " each call, and then the median of these times"
        ): max(map(np.median, timed))
    }
    require_samples(run, calls, warm_up, wrong if n > 1 else {}, last)
    require_exchange(run)
    for rank in range(n):
        _demand_silence(run, rank, warm_up)


def require_meetings(run, warm_up=0):
    """Fail unless every rank calls the barrier before each timed call of the operation.

    All ranks must call the barrier equally often.
    """
    for rank in range(run.report.size):
        _demand_meetings_of(run, rank, events(run, rank), warm_up)


def _demand_meetings_of(run, rank, seen, warm_up):
    timed = [i for i, event in enumerate(seen) if event == "operation"]
    for i, place in enumerate(timed[warm_up:]):
        earlier = timed[: warm_up + i]
        since = seen[earlier[-1] if earlier else 0 : place]
        met = "barrier" in since
        run.require(
            met,
            f"rank {rank} did not call barrier before timed call {i} (counted from 0). So the time"
            " of this call would include the wait for a late rank.",
        )
    times, of_first = seen.count("barrier"), events(run, 0).count("barrier")
    text = (
        f"rank {rank} called barrier {often(times)}, and rank 0 called it {often(of_first)}. A"
        " barrier ends when all ranks have called it: call it equally often on every rank."
    )
    run.require(times == of_first, text)


def _require_synchronized_before_barrier(run, rank, warm_up):
    """Fail if a rank synchronises between a barrier and its call, but not before the barrier.

    Also fail if the rank does not synchronise between an exchange of times and the next timed call.
    Also fail if it never calls the operation, the barrier or ``synchronize``, because then there is
    no order to judge.
    """
    # Since the last operation: whether the rank has synchronised, and whether it has called the
    # barrier.
    has_synchronized = has_met = False
    # whether the device may still work on an exchange of times
    is_exchanging = False
    made = 0  # calls of the operation
    seen = events(run, rank)
    for name, function in (
        ("operation", "the operation"),
        ("barrier", "barrier"),
        ("synchronize", "synchronize"),
    ):
        run.require(name in seen, f"rank {rank} never called {function}.")
    for event in seen:
        if event == "operation":
            run.require(
                not is_exchanging or made < warm_up,
                f"rank {rank} did not call synchronize between an exchange of times and the next"
                " call of the operation. On a GPU the exchange may still be running when the clock"
                " starts. Before each barrier, call synchronize.",
            )
            made += 1
            has_synchronized = has_met = False
        elif event.startswith("comm ") and event != "comm barrier":  # dist.barrier itself waits
            is_exchanging = True
        elif event == "barrier":
            has_met = True
        elif event == "synchronize":
            run.require(
                has_synchronized or not has_met,
                f"rank {rank} synchronised after the barrier, and not before it. If the rank's"
                " device is still busy, the rank starts late, and the other ranks measure this"
                " delay, too."
                " Synchronise first, then call the barrier, then read the clock.",
            )
            has_synchronized, is_exchanging = True, False


def require_exchange(run):
    """Fail if a rank has not communicated, unless the world has only one rank.

    Without communication, a rank cannot know how long the slowest rank took.
    """
    for rank in range(run.report.size):
        exchanged = run.report.size == 1 or any(
            event.startswith("comm ") for event in events(run, rank)
        )
        run.require(
            exchanged,
            f"rank {rank} communicated nothing, so it cannot know how long the slowest rank took.",
        )


def _times(rng, n):
    """Return, for each rank, the times of three calls, in seconds.

    The mean of the slowest times is also their median. If there are several ranks, this median
    differs from every rank's own median, and cannot be computed from the times of faster ranks.
    """
    middle, step = rng.uniform(5, 7), rng.uniform(1, 3)
    maxima = rng.permutation([middle - step, middle, middle + step])
    timed = rng.uniform(0.1, 0.5, (n, 3)) * (middle - step)
    slowest = (
        rng.permutation(n) if n == 3 else [0 if value != middle else n - 1 for value in maxima]
    )
    timed[slowest, range(3)] = maxima
    return timed.tolist()


def _demand_silence(run, rank, warm_up):
    """Fail if a rank communicates while it times a call. Calls of the warm-up are not timed.

    The timing of a call begins when the rank last reads the clock before the call. It ends when the
    rank first reads the clock after the call.
    """
    # The events since the rank last read the clock. The dict has each event only once, so it stays
    # small after thousands of calls.
    since, made = None, 0
    for event in events(run, rank):
        run.require(
            event != "an exchange is under way" or made < warm_up,
            f"rank {rank} started an exchange with async_op=True, and did not wait for it before"
            " the next timed call. The exchange may slow this call down. Wait for the exchange"
            " before you start the clock.",
        )
        made += event == "operation"
        if event == "clock":
            during = [kind[5:] for kind in since or () if kind.startswith("comm ")]
            timed = since is not None and "operation" in since and made > warm_up
            run.require(
                not (timed and during),
                f"rank {rank} communicates while it times a call: {', '.join(during[:1])}."
                " Exchange the times before the clock starts or after it stops.",
            )
            since = {}
        elif since is not None:
            since[event] = True


@number("2.2")
@weight(0.25)
def test_median(world, rng):
    """stopwatch returns the median of an odd and of an even number of samples"""
    cases = (
        [3.0, 1.0, 40.0],
        [4.0, 1.0, 2.0, 90.0],
        [7.0],
        [1.0, 6.0],
        [float(i * i) for i in range(21)],
    )
    for run, own in zip(world(2, *(watch([own] * 2, 0) for own in cases)), cases):
        known = {
            "this is the mean. One slow iteration changes the mean. Use the median": np.mean(own),
            "this is the smallest of the times. Use the median": min(own),
            "this is the lower of the two middle times. The median is their mean": (
                sorted(own)[(len(own) - 1) // 2]
            ),
            "this is the upper of the two middle times. The median is their mean": (
                sorted(own)[len(own) // 2]
            ),
        }
        require_samples(run, [own] * 2, 0, {}, last=known)
        run.require(
            "a tuple without names" not in events(run, 0),
            "stopwatch did not return a Timing. Return Timing(seconds, samples): `make bandwidth`"
            " reads its fields by name.",
        )


@number("2.2")
@weight(0.25)
@on_gloo
def test_stopwatch_twice(world, rng):
    """A second call of stopwatch does not change the samples of the first call"""
    own = list(rng.permutation([1.0, 1.25, 2.0]) * rng.uniform(1, 2))  # mean ≠ median
    (run,) = world(2, watch([own] * 2, 0, measured_again=True))
    later = {
        "these are the samples of the second measurement, which overwrote those of the first. Make"
        " a new list for each measurement": [[0.5] * 3] * 2
    }
    require_samples(run, [own] * 2, 0, later)


@number("2.2")
@weight(0.25)
def test_stopwatch_misuse(world, rng):
    """stopwatch raises ValueError with the value if iterations ≤ 0 or warm_up < 0, before it calls
    the operation
    """
    asked = [(1, 0), (1, -1), (-2, 3)]
    for size in (1, 2):
        runs = world(
            size,
            *(watch([[1.0]] * size, warm_up, may_raise=True, iterations=n) for warm_up, n in asked),
        )
        for run, number_ in zip(runs, ("0", "-1", "-2")):
            run.raises_value_error(number_)
            require_no_operation(run)


def require_no_operation(run):
    """Fail if a rank called the operation before it refused its arguments."""
    for rank in range(run.report.size):
        made = events(run, rank).count("operation")
        run.require(
            made == 0,
            f"rank {rank}'s ValueError comes after {counted(made, 'call')} of the operation."
            " Check the arguments first.",
        )


# ——— 2.3: the sweep


def table(rng, wrong=0):
    collectives = ["all_gather", "broadcast", "all_reduce"]
    sizes = [int(size) for size in rng.integers(1000, 10**9, size=4)]
    answers = [(float(rng.uniform(1e-4, 1)), int(rng.integers(0, 3)) * wrong) for _ in range(12)]
    return collectives, sizes, answers


@number("2.3")
@weight(0.5)
def test_sweep_rows(world, rng):
    """sweep yields a row for each collective and size, in order, with time, both bandwidths and the
    number of wrong entries
    """
    asked = [(4, *table(rng, wrong=5))]
    asked.append((1, ["reduce"], [8], [(0.5, 1)]))
    asked.append((3, ["gather", "gather"], [64, 8, 8], [(float(i), i) for i in range(1, 7)]))
    no_memory = (float("inf"), 0)  # what `make bandwidth` reports for a size that is too large
    asked.append(
        (
            2,
            ["reduce", "scatter"],
            [64, 8, 16],
            [(1.0, 0), no_memory, (2.0, 0), no_memory, (3.0, 0), no_memory],
        )
    )
    runs = world(
        1, *(call("benchmarking.sweep", c, s, n, a, driver="swept") for n, c, s, a in asked)
    )
    for run, (n, collectives, sizes, answers) in zip(runs, asked):
        require_rows(
            run, n, [(collective, size) for collective in collectives for size in sizes], answers
        )
        require_unchanged(run)
        run.require(
            "a tuple without names" not in events(run, 0),
            "sweep did not yield a Row. Yield Row(collective, size, …): `make bandwidth` reads its"
            " fields by name.",
        )


def require_unchanged(run):
    """Fail if a rank changed a list that it was given."""
    run.values()
    run.require(
        "an argument was changed" not in events(run, 0),
        "the function changed a list that it was given. Inputs must stay unchanged: use a copy.",
    )


def require_rows(run, n, asked, answers):
    """Fail unless the sweep called ``run`` as in ``asked``, in order, and yielded the right rows.

    For each call of ``run``, ``asked`` has its arguments (collective, size), and ``answers`` has
    its result (seconds, wrong entries). The number of ranks is ``n``.
    """
    rows = table_rows.as_rows(run.values()[0])
    run.require(rows is not None, table_rows.NO_ROWS)
    run.require(
        len(rows) == len(asked),
        f"the sweep yielded {len(rows)} rows. It must yield one row for each collective at each"
        f" size, {len(asked)} in all.",
    )
    ran = [event.removeprefix("run ") for event in events(run, 0) if event.startswith("run ")]
    run.require(
        len(ran) == len(asked),
        f"the sweep called run {often(len(ran))}. It must call run once for each collective at each"
        f" size, {len(asked)} times in all.",
    )
    for i, (right, got) in enumerate(
        zip([f"{collective} {size}" for collective, size in asked], ran)
    ):
        run.require(
            got == right,
            f"call {i} of run (counted from 0) got the arguments ({got.replace(' ', ', ')}), not"
            f" ({right.replace(' ', ', ')}). First run all sizes of the first collective, then all"
            " sizes of the second, and so on.",
        )
    for i, ((collective, size), (seconds, wrong), row) in enumerate(zip(asked, answers, rows)):
        algorithm = truth.algorithm_bandwidth(size, seconds)
        bus = truth.bus_bandwidth(collective, size, n, seconds)
        different = table_rows.row_difference(
            row, (collective, size, seconds, algorithm, bus, wrong)
        )
        which = f"row {i} (counted from 0), {collective}, {size} bytes"
        run.require(different is None, f"{which}: {different}")


@number("2.3")
@weight(0.5)
def test_sweep_is_lazy(world, rng):
    """sweep yields each row before the next run begins"""
    collectives, sizes, answers = table(rng)
    (run,) = world(1, call("benchmarking.sweep", collectives, sizes, 2, answers, driver="swept"))
    asked = [(collective, size) for collective in collectives for size in sizes]
    require_rows(run, 2, asked, answers)
    seen = [
        "row" if event == "row" else "run"
        for event in events(run, 0)
        if event.startswith(("row", "run"))
    ]
    run.require(
        seen.count("run") == seen.count("row") == 12,
        f"the sweep made {seen.count('run')} runs and yielded {seen.count('row')} rows. It must"
        " make 12 runs, and yield one row for each.",
    )
    if seen != ["run", "row"] * 12:
        text = f"{_first_late_row(seen)} Yield each row as soon as its run has ended."
        run.require(False, text)


def _first_late_row(seen):
    """Return a sentence about the first row that was yielded at a wrong time.

    ``seen`` has a "run" for each run that ended, and a "row" for each row that was yielded.
    """
    row = next(i for i in range(len(seen)) if seen[i] != ("run", "row")[i % 2]) // 2
    which = f"row {row} (counted from 0)" if row else "the first row"
    at = [i for i, event in enumerate(seen) if event == "row"][row]
    runs = seen[:at].count("run")
    if runs <= row:
        return f"{which} was yielded before its run had ended."
    return f"{runs} runs had ended before {which} was yielded."


@number("2.3")
@weight(0.25)
def test_sweep_misuse(world, rng):
    """An unknown collective raises ValueError before anything is run"""
    _, sizes, answers = table(rng)
    names = ["all_reduce", truth.NO_COLLECTIVE]
    asked = (names, names[::-1])
    runs = world(
        1,
        *(
            call("benchmarking.sweep", c, sizes, 2, answers, driver="swept", may_raise=True)
            for c in asked
        ),
    )
    for run in runs:
        run.raises_value_error(truth.NO_COLLECTIVE)
        ran = [event for event in events(run, 0) if event.startswith("run")]
        runs = counted(len(ran), "run")
        run.require(not ran, f"the ValueError comes after {runs}. Check all collectives first.")


# ——— 2.4: the model


@number("2.4")
@weight(0.75)
def test_fit(world, rng):
    """fit_latency_bandwidth returns the α and β that minimise the relative errors, for exact and
    for noisy times
    """
    cases = fit_cases(rng)
    (run,) = world(1, call("benchmarking.fit_latency_bandwidth", *cases, driver="fitted"))
    require_unchanged(run)
    for i, (sizes, seconds) in enumerate(cases):
        alpha, beta = right = truth.fit(sizes, seconds)
        latest = dict(zip(sizes, seconds))
        mistakes = {
            (
                "the absolute errors were minimised, which fits only the largest size."
                " Minimise the relative errors"
            ): truth.fit(sizes, seconds, power=0),
            "this minimises Σ (error²/t), not Σ (error/t)²": truth.fit(sizes, seconds, power=0.5),
            "this is the slope, seconds per byte. The bandwidth is its inverse": (
                alpha,
                1 / beta,
            ),
            "only one time of each size was used, the last one. Use all times": truth.fit(
                list(latest), list(latest.values())
            ),
            NEGATIVE: (max(alpha, 0.0), beta),
        }
        # Compare α and β in units of their own. In common units, α would be so much smaller than β
        # that the comparison would not notice an error of α.
        units = 10.0 ** np.floor(np.log10(np.abs(right)))
        run.returns(
            np.array(right) / units,
            tolerance=FIT,
            select=lambda r: numbers(r[i][:2]) / units,
            label=(
                f"the result of call [{i}] (α in units of {units[0]:.0e} s, β in units of"
                f" {units[1]:.0e} bytes/s)"
            ),
            known_mistakes=[
                {sentence: np.array(values) / units for sentence, values in mistakes.items()}
            ],
        )


def fit_cases(rng):
    """Return pairs of sizes and times.

    The cases have exact times, noisy times, more than one time for each size (in any order), times
    that give a negative latency, very large sizes, and a very small latency.
    """
    cases = []
    for noise in (0.0, 0.0, 0.1, 0.2):
        alpha, beta = float(rng.uniform(1e-5, 1e-4)), float(rng.uniform(1e9, 1e11))
        sizes = [int(1024 * 4**k) for k in range(9)]
        cases.append(
            (
                sizes,
                [
                    (alpha + size / beta) * float(rng.uniform(1 - noise, 1 + noise))
                    for size in sizes
                ],
            )
        )
    sizes, seconds = (values * 2 for values in cases[-1])
    seconds = [time * float(rng.uniform(0.95, 1.05)) for time in seconds]
    seconds[8] = seconds[17]  # both times of the largest size are equal
    # The largest size is the first, and the smallest size is the last.
    order = [8, *rng.permutation(range(9, 18)).tolist(), *range(1, 8), 0]
    cases.append(([sizes[i] for i in order], [seconds[i] for i in order]))
    negative = [1024 * 2**k for k in range(6)]
    cases.append(
        (negative, [(size - 512) / 1e9 * float(rng.uniform(0.99, 1.01)) for size in negative])
    )
    large = [2**k for k in (0, 20, 31, 32, 33)]  # their squares do not fit into int64
    cases.append((large, [(2**20 + size) / 1e11 for size in large]))
    # float32 has too few digits for such a small latency.
    slow = [10**6, 2 * 10**6, 3 * 10**6, 5 * 10**6]
    cases.append((slow, [1e-7 + size / 1e7 for size in slow]))
    return cases


@number("2.4")
@weight(0.5)
def test_predictions(world, rng):
    """predict_seconds and half_peak_size follow the model t = α + S/β"""
    models = [(float(rng.uniform(1e-6, 1e-3)), float(rng.uniform(1e8, 1e11))) for _ in range(6)]
    cases = [(alpha, beta, int(rng.integers(0, 10**9))) for alpha, beta in models] + [
        (1e-5, 1e9, 0),
        (-1e-5, 1e9, 10**6),
        (-1e-5, 1e9, 1),
        (0.0, 1e9, 10**6),
    ]
    quick = [
        (
            "a negative time was replaced by 0. Return what the model says",
            [max(a + s / b, 0.0) for a, b, s in cases],
        ),
        (NEGATIVE, [max(alpha, 0.0) + size / beta for alpha, beta, size in cases]),
        (
            "this is only the time that the bytes take. Add the latency",
            [size / beta for _, beta, size in cases],
        ),
    ]
    ask(
        world, "predict_seconds", cases, [alpha + size / beta for alpha, beta, size in cases], quick
    )
    models.append((0.0, 1e9))
    ask(world, "half_peak_size", models, [alpha * beta for alpha, beta in models])


@number("2.4")
@weight(0.25)
def test_fit_misuse(world, rng):
    """fit_latency_bandwidth raises ValueError for too few different sizes or times, unequal
    lengths, or times that do not grow with the size
    """
    unlike = "The numbers of times and sizes differ."
    few = "A fit needs at least two different sizes and two different times."
    falling = "The times do not grow with the sizes."
    cases = [([], [], few), ([1024], [1.0], few), ([1024, 1024], [1.0, 2.0], few)]
    cases += [([1, 2, 3], [1.0, 2.0], unlike), ([1, 2], [1.0, 2.0, 3.0], unlike)]
    cases += [([1, 2000], [3.0, 1.0], falling), ([1, 10, 100], [3.0, 2.5, 1.0], falling)]
    # The largest size takes the longest time, but the best fit has 1/β < 0.
    cases += [([1000, 2000, 3000], [1.0, 0.2, 1.1], falling)]
    cases += [
        (rng.integers(1, 10**9, 5).tolist(), [float(time)] * 5, few)
        for time in rng.uniform(1e-5, 1.0, 40).round(6)
    ]
    name = "benchmarking.fit_latency_bandwidth"
    runs = world(1, *(call(name, sizes, seconds, may_raise=True) for sizes, seconds, _ in cases))
    for run, (_, _, because) in zip(runs, cases):
        run.raises_value_error(because=because)
