"""Problem 2.1 · The hidden checks of algorithm bandwidth and bus bandwidth."""

from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check.api import call
from grader.hidden.benchmark_answers import answers, ask
from grader.hidden.world_sizes import drawn_sizes
from grader.reference import bandwidth as truth
from grader.reference import benchmark_rows as table_rows

WHOLE_BYTES = "this is rounded down to whole bytes per second. Did you use // instead of /?"


def _sizes(rng):
    """Return world sizes to ask about: 1 to 4, one up to 16, and one up to 1000."""
    return [1, 2, 3, 4, int(rng.integers(5, 17)), int(rng.integers(17, 1001))]


def refuses(world, n, function, *cases):
    """Fail unless each case raises a ValueError whose message contains the case's last entry.

    The function is called on ``n`` ranks.
    """
    runs = world(
        n, *(call(f"benchmarking.{function}", *case, may_raise=True) for *case, _ in cases)
    )
    for run, (*_, words) in zip(runs, cases):
        run.raises_value_error(words)


@number("2.1")
@weight(1.0)
def test_array_bytes(world, rng):
    """array_bytes returns the size of the whole array, for every collective and 1 to 1000 ranks"""
    cases = [(c, int(rng.integers(1, 9999)) * 4, n) for c in truth.COLLECTIVES for n in _sizes(rng)]
    cases += [("all_gather", 0, 4), ("all_gather", 10, 4)]
    (n,) = drawn_sizes(rng)
    (run,) = world(n, call("benchmarking.array_bytes", *cases, driver="in_turn"))
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
        ("this is in GiB/s (2³⁰ bytes). Use GB/s (10⁹ bytes)", gib),
        (WHOLE_BYTES, whole),
    ]
    ask(world, *drawn_sizes(rng), "algorithm_bandwidth", cases, right, mistakes)


@number("2.1")
@weight(1.75)
def test_bus_bandwidth(world, rng):
    """bus_bandwidth uses the factor that nccl-tests documents, for every collective and 1 to 1000
    ranks
    """
    asked = [
        [
            (collective, int(rng.integers(1, 10**10)), n, float(rng.uniform(1e-5, 3)))
            for n in _sizes(rng)
        ]
        for collective in truth.COLLECTIVES
    ]
    asked = [[*cases, (cases[0][0], 0, 2, 1.0), (cases[0][0], 2**40, 4, 500.0)] for cases in asked]
    runs = world(
        *drawn_sizes(rng),
        *(call("benchmarking.bus_bandwidth", *cases, driver="in_turn") for cases in asked),
    )
    for collective, cases, run in zip(truth.COLLECTIVES, asked, runs):
        ranks = [n for _, _, n, _ in cases]
        right = [truth.bus_bandwidth(*case) for case in cases]
        algorithm = [truth.algorithm_bandwidth(size, seconds) for _, size, _, seconds in cases]
        again = (
            "this is n times the expected value. The argument “size” is already the size of the"
            " whole array, and the factor is relative to this size. So do not multiply by n"
        )
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
        (float(rng.uniform(1, 500)), n, counted)
        for n in _sizes(rng)
        for counted in ("whole", "part")
    ]
    cases += [(0.0, 2, "part")]
    right = [r * 1.073741824 * (n if counted == "part" else 1) for r, n, counted in cases]
    binary = [value / 1.073741824 for value in right]
    same = [r * 1.073741824 for r, _, _ in cases]
    mistakes = [
        ("this is still in 2³⁰ bytes per second. Use 10⁹ bytes per second", binary),
        ("the size of one part was used. The whole array has n parts", same),
        (
            "a figure for the “whole” array was multiplied by n. Multiply by n only if counted is"
            " “part”",
            [v * (n if c == "whole" else 1) for v, (_, n, c) in zip(same, cases)],
        ),
        (
            "the figure for a “part” was multiplied by n − 1. The whole array has n parts, and the"
            " reported figure already contains the factor (n − 1)/n",
            [v * (n - 1 if c == "part" else 1) for v, (_, n, c) in zip(same, cases)],
        ),
    ]
    ask(world, *drawn_sizes(rng), "usual_bandwidth", cases, right, mistakes)


@number("2.1")
@weight(0.125)
def test_bandwidth_misuse(world, rng):
    """An unknown collective, a wrong “counted”, a time ≤ 0 or a world size ≤ 0 raises ValueError
    with the value
    """
    (n,) = drawn_sizes(rng)
    negative, seconds = -int(rng.integers(1, 100)), -float(rng.integers(1, 100)) / 4
    refuses(
        world,
        n,
        "array_bytes",
        (truth.NO_COLLECTIVE, 4, 2, truth.NO_COLLECTIVE),
        ("reduce", 4, 0, "0"),
        ("all_gather", 4, negative, str(negative)),
        (truth.NO_COLLECTIVE, 4, 1, truth.NO_COLLECTIVE),
    )
    refuses(world, 1, "algorithm_bandwidth", (4, 0.0, "0"), (4, seconds, f"{seconds:g}"))
    refuses(
        world,
        n,
        "bus_bandwidth",
        (truth.NO_COLLECTIVE, 4, 2, 1.0, truth.NO_COLLECTIVE),
        (truth.NO_COLLECTIVE, 4, 1, 1.0, truth.NO_COLLECTIVE),
        ("all_reduce", 4, negative, 1.0, str(negative)),
        ("broadcast", 4, 0, 1.0, "0"),
        ("all_reduce", 4, 2, 0.0, "0"),
        ("broadcast", 4, 1, seconds, f"{seconds:g}"),
        # One rank moves nothing, so the time may have no effect on the result. Even then an
        # impossible time must be refused.
        *((collective, 4, 1, 0.0, "0") for collective in truth.COLLECTIVES),
    )
    refuses(
        world,
        1,
        "usual_bandwidth",
        (1.0, 2, "half", "half"),
        (1.0, 1, "half", "half"),
        (1.0, 0, "part", "0"),
        (1.0, negative, "whole", str(negative)),
    )
