"""Problem 2.4 · The hidden checks of the latency–bandwidth model: its fit and its predictions."""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check.api import Tolerance, call
from grader.hidden.benchmark_answers import ask, numbers, require_unchanged
from grader.hidden.world_sizes import drawn_sizes
from grader.reference import bandwidth as truth

NEGATIVE = "a negative α was replaced by 0. Keep it negative"
FIT = Tolerance(1e-4, "a least-squares fit of two unknowns, by any algorithm")


@number("2.4")
@weight(0.75)
def test_fit(world, rng):
    """fit_latency_bandwidth returns the α and β that minimise the relative errors, for exact and
    for noisy times
    """
    cases = fit_cases(rng)
    (n,) = drawn_sizes(rng)
    (run,) = world(n, call("benchmarking.fit_latency_bandwidth", *cases, driver="fitted"))
    require_unchanged(run)
    for i, (sizes, seconds) in enumerate(cases):
        alpha, beta = right = truth.fit(sizes, seconds)
        latest = dict(zip(sizes, seconds))
        mistakes = {
            (
                "the absolute errors were minimised. Then only the largest times are fitted well."
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
        # Compare α and β, each in a unit of its own. In common units, α would be so much smaller
        # than β that the comparison would not notice an error of α.
        units = 10.0 ** np.floor(np.log10(np.abs(right)))
        run.returns(
            *[np.array(right) / units] * n,
            tolerance=FIT,
            select=lambda r: numbers(r[i][:2]) / units,
            label=(
                f"the result of call [{i}] (α in units of {units[0]:.0e} s, β in units of"
                f" {units[1]:.0e} bytes/s)"
            ),
            known_mistakes=[
                {sentence: np.array(values) / units for sentence, values in mistakes.items()}
            ]
            * n,
            otherwise="did you compute in float64? torch.tensor(seconds) has the dtype float32,"
            " which has too few digits here. Pass dtype=torch.float64",
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
    # drawn numbers of sizes: 3 to 8, and 19 to 40
    for count in (int(rng.integers(3, 9)), int(rng.integers(19, 41))):
        sizes = (2.0 ** np.linspace(10, 26, count)).astype(int).tolist()
        noise = rng.uniform(0.9, 1.1, count)
        cases.append((sizes, [(2e-5 + s / 1e10) * float(x) for s, x in zip(sizes, noise)]))
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
    right = [alpha + size / beta for alpha, beta, size in cases]
    (n,) = drawn_sizes(rng)
    ask(world, n, "predict_seconds", cases, right, quick)
    models.append((0.0, 1e9))
    ask(world, n, "half_peak_size", models, [alpha * beta for alpha, beta in models])


@number("2.4")
@weight(0.25)
def test_fit_misuse(world, rng):
    """fit_latency_bandwidth raises ValueError for too few different sizes or times, unequal
    lengths, or times that do not grow with the size
    """
    unlike = "There must be one time for each size."
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
