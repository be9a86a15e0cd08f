"""Problem 2.2 · The hidden checks of the stopwatch.

The grader simulates clocks, devices and operations, so that nothing depends on real speed.
"""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check.api import call, on_gloo, per_rank, rounding
from grader.hidden.benchmark_answers import numbers
from grader.hidden.world_sizes import drawn_sizes
from grader.reference import benchmark_rows as table_rows
from grader.reference import stopwatches
from grader.reference.counting import counted, often
from grader.reference.stopwatches import events

# Ranks may send each other their times in float32, which is exact enough for any stopwatch.
TIMES = rounding(np.float32)


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
    options |= {
        "calls": per_rank(*map(tuple, calls)),
        "warm_up": warm_up,
        "iterations": iterations,
    }
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
    warm_ups = [0, int(rng.integers(1, 6)), int(rng.integers(6, 10))]
    iterations_of = rng.permutation([1, *_iterations(rng)]).tolist()
    cases = list(zip(warm_ups, iterations_of))
    timed = float(rng.uniform(1, 2))
    calls = [[50.0] * warm_up + [timed] * iterations for warm_up, iterations in cases]
    (n,) = drawn_sizes(rng)
    runs = world(n, *(watch([own] * n, warm_up) for own, (warm_up, _) in zip(calls, cases)))
    for run, own, (warm_up, iterations) in zip(runs, calls, cases):
        cold = {"the warm-up calls were timed": [own[:iterations]] * n} if warm_up else {}
        require_samples(run, [own] * n, warm_up, cold)


TIMED_THE_LAUNCH = (
    "only the start of the device's work was timed. Call synchronize before you stop the clock"
)
STILL_BUSY = (
    "the device was still busy with earlier work. Call synchronize before you start the clock"
)


def _iterations(rng):
    """Return how many timed calls each of two runs makes: few (3 to 6), and many (7 to 12).

    One of the two numbers is odd, and the other is even.
    """
    few, many = int(rng.integers(3, 7)), 2 * int(rng.integers(4, 7))  # 8, 10 or 12
    return [few, many if few % 2 else many - 1]


def _counts(rng):
    """Return how many calls each of two runs makes: the warm-up, and the timed calls.

    One run has no warm-up, and the other has a warm-up of 1 to 9 calls.
    """
    return list(zip([0, int(rng.integers(1, 10))], rng.permutation(_iterations(rng)).tolist()))


def _with_equal_middle(rng, times):
    """Return the times in a random order. If their number is even, the two in the middle are equal.

    So the median is the same if a stopwatch takes only one of the two. ``test_median`` judges this.
    """
    ordered = sorted(times)
    ordered[(len(ordered) - 1) // 2] = ordered[len(ordered) // 2]
    return rng.permutation(ordered).tolist()


@number("2.2")
@weight(1.0)
def test_barrier(world, rng):
    """stopwatch calls barrier before each timed call, and does not time the barrier"""
    meeting, late = float(rng.uniform(90, 110)), float(rng.uniform(900, 1100))
    for n in drawn_sizes(rng, 2):
        cases = [(warm_up, [float(rng.uniform(1, 2))] * k) for warm_up, k in _counts(rng)]
        calls = [[50.0] * warm_up + right for warm_up, right in cases]
        requests = (
            watch([own] * n, warm_up, barrier_takes=meeting, late=late)
            for own, (warm_up, _) in zip(calls, cases)
        )
        for run, own, (warm_up, right) in zip(world(n, *requests), calls, cases):
            mistakes = _barrier_mistakes(n, right, meeting, late)
            require_samples(run, [own] * n, warm_up, mistakes)
            require_meetings(run, warm_up)


def _barrier_mistakes(n, right, meeting, late):
    """Return a dict with the samples of stopwatches that call barrier at a wrong moment.

    The timed calls take the times ``right``. A barrier takes ``meeting`` seconds. Without a
    barrier, an operation also waits ``late`` seconds for a late rank.
    """
    unmet = [t + late for t in right]
    return {
        "the barrier was timed": [[t + meeting for t in right]] * n,
        "your code did not call its argument `barrier` before the operation. (dist.barrier is"
        " another function.) So the operation waits for a rank that comes late": ([unmet] * n),
        "there is a barrier only before the first timed call. Each timed call needs its own"
        " barrier": ([[right[0], *unmet[1:]]] * n),
        "the barrier comes after the operation. Call barrier before you start the clock": (
            [[unmet[0] + meeting, *(t + meeting for t in right[1:])]] * n
        ),
        (
            "from the second call on, the barrier is part of the measured time. Read the clock"
            " before each call, after its barrier"
        ): ([[right[0], *(t + meeting for t in right[1:])]] * n),
    }


@number("2.2")
@weight(0.75)
def test_synchronize(world, rng):
    """stopwatch starts the clock when the device is idle, and stops it when the device has done the
    operation
    """
    busy = float(rng.uniform(60, 80))
    launch = 0.001
    for n in (1, *drawn_sizes(rng, 2)):
        cases = [(warm_up, [float(rng.uniform(1, 2))] * k) for warm_up, k in _counts(rng)]
        calls = [[50.0] * warm_up + right for warm_up, right in cases]
        requests = (
            watch([own] * n, warm_up, asynchronous=True, busy=busy)
            for own, (warm_up, _) in zip(calls, cases)
        )
        for run, own, (warm_up, right) in zip(world(n, *requests), calls, cases):
            only_launched = [launch] * len(right)
            with_earlier_work = [
                right[0] + busy + (50.0 - launch) * warm_up,
                *right[1:],
            ]
            mistakes = {
                TIMED_THE_LAUNCH: [only_launched] * n,
                STILL_BUSY: [with_earlier_work] * n,
            }
            require_samples(run, [own] * n, warm_up, mistakes)


@number("2.2")
@weight(0.25)
def test_synchronize_before_the_barrier(world, rng):
    """stopwatch synchronizes before each barrier, and also between an exchange of times and the
    next call
    """
    cases = [(rng.uniform(1, 2, warm_up + k).tolist(), warm_up) for warm_up, k in _counts(rng)]
    (n,) = drawn_sizes(rng)
    runs = world(n, *(watch([own] * n, warm_up, asynchronous=True) for own, warm_up in cases))
    for run, (_, warm_up) in zip(runs, cases):
        run.values()
        for rank in range(n):
            _require_synchronized_before_barrier(run, rank, warm_up)


@number("2.2")
@weight(1.0)
def test_slowest_rank(world, rng):
    """stopwatch returns the slowest rank's times on every rank, and sends nothing while the clock
    runs
    """
    for n in (1, 2, 3, 4):
        cases = []
        for warm_up, iterations in _counts(rng):
            timed = _times(rng, n, iterations)
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
    """Fail if a rank calls ``synchronize`` after the last barrier before a call of the operation,
    but not before this barrier.

    Also fail if the rank does not call ``synchronize`` between an exchange of times and the next
    timed call. Also fail if the rank never calls the operation, the barrier or ``synchronize``,
    because then there is no order to judge.
    """
    seen = events(run, rank)
    for name, function in (
        ("operation", "the operation"),
        ("barrier", "barrier"),
        ("synchronize", "synchronize"),
    ):
        run.require(name in seen, f"rank {rank} never called {function}.")
    begin = 0  # the position after the last call of the operation
    # whether the device may still work on an exchange of times
    is_exchanging = False
    made = 0  # calls of the operation
    for position, event in enumerate(seen):
        if event == "operation":
            run.require(
                not is_exchanging or made < warm_up,
                f"rank {rank} did not call synchronize between an exchange of times and the next"
                " call of the operation. On a GPU the exchange may still be running when the clock"
                " starts. Before each barrier, call synchronize.",
            )
            run.require(
                not _synchronizes_late(seen[begin:position]),
                f"rank {rank} called synchronize after the barrier, and not before it. If the"
                " rank's device is still busy, the rank starts late, and the other ranks measure"
                " this delay, too. First call synchronize, then the barrier, then read the clock.",
            )
            made, begin = made + 1, position + 1
        elif event.startswith("comm ") and event != "comm barrier":  # dist.barrier itself waits
            is_exchanging = True
        elif event == "synchronize":
            is_exchanging = False


def _synchronizes_late(since):
    """Return whether ``synchronize`` was called after the last barrier, but not before it.

    ``since`` has the events between two calls of the operation.
    """
    if "barrier" not in since:
        return False
    last = len(since) - 1 - since[::-1].index("barrier")
    return "synchronize" in since[last:] and "synchronize" not in since[:last]


def require_exchange(run):
    """Require that each rank has communicated, if the world has several ranks.

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


def _times(rng, n, iterations):
    """Return, for each rank, the times of at least three calls, in seconds.

    The mean of the slowest times is also their median. If there are several ranks, this median
    differs from every rank's own median, and cannot be computed from the times of faster ranks. If
    there are enough calls, each rank is the slowest in a call.
    """
    middle = rng.uniform(5, 7)
    steps = np.sort(rng.uniform(0.2, 3, (iterations - 1) // 2))
    # If the number of calls is even, both times in the middle are the median.
    centre = [middle] * (iterations - 2 * len(steps))
    maxima = np.array([*(middle - steps[::-1]), *centre, *(middle + steps)])
    timed = rng.uniform(0.1, 0.5, (n, iterations)) * maxima[0]
    # The ranks take turns, from the fastest call to the slowest call. So the slowest rank of a call
    # in the middle is not the slowest rank of the next slower call.
    timed[np.resize(rng.permutation(n), iterations), range(iterations)] = maxima
    return timed[:, rng.permutation(iterations)].tolist()


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
    counts = [odd + 2 * int(rng.integers(choices)) for odd, choices in ((3, 2), (7, 3), (13, 9))]
    counts += [count + 1 for count in counts[::-1]]
    # With one slow iteration, the mean is larger than all other times.
    cases = [
        rng.permutation([*(1 + rng.choice(40, k - 1, replace=False)), 2000]).astype(float).tolist()
        for k in counts
    ]
    cases += [[float(rng.uniform(1, 9))], [1.0, float(rng.uniform(2, 9))]]
    (n,) = drawn_sizes(rng)
    for run, own in zip(world(n, *(watch([own] * n, 0) for own in cases)), cases):
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
        require_samples(run, [own] * n, 0, {}, last=known)
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
    # mean ≠ median
    cases = [_with_equal_middle(rng, [*rng.uniform(1, 1.5, k - 1), 20.0]) for k in _iterations(rng)]
    (n,) = drawn_sizes(rng)
    runs = world(n, *(watch([own] * n, 0, measured_again=True) for own in cases))
    for run, own in zip(runs, cases):
        later = {
            "these are the samples of the second measurement, which overwrote those of the first."
            " Make a new list for each measurement": [[0.5] * len(own)] * n
        }
        require_samples(run, [own] * n, 0, later)


@number("2.2")
@weight(0.25)
def test_stopwatch_misuse(world, rng):
    """stopwatch raises ValueError with the value if iterations ≤ 0 or warm_up < 0, before it calls
    the operation
    """
    (several,) = drawn_sizes(rng)
    for size in (1, several):
        warm_up, negative, bad_warm_up, iterations = rng.integers(1, 13, 4).tolist()
        asked = [(warm_up, 0), (warm_up - 1, -negative), (-bad_warm_up, iterations)]
        runs = world(
            size,
            *(watch([[1.0]] * size, warm_up, may_raise=True, iterations=n) for warm_up, n in asked),
        )
        for run, bad in zip(runs, (0, -negative, -bad_warm_up)):
            run.raises_value_error(str(bad))
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
