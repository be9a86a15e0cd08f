"""The bandwidths of the reference and of the judge are those that nccl-tests documents.

See doc/PERFORMANCE.md of nccl-tests.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.reference import bandwidth as truth
from solutions import benchmarking

# Bus bandwidth / algorithm bandwidth, for 2, 3, 4 and 8 ranks.
FACTORS = {
    "all_reduce": (1, 4 / 3, 6 / 4, 14 / 8),
    "reduce_scatter": (1 / 2, 2 / 3, 3 / 4, 7 / 8),
    "all_gather": (1 / 2, 2 / 3, 3 / 4, 7 / 8),
    "all_to_all": (1 / 2, 2 / 3, 3 / 4, 7 / 8),
    "scatter": (1 / 2, 2 / 3, 3 / 4, 7 / 8),
    "gather": (1 / 2, 2 / 3, 3 / 4, 7 / 8),
    "broadcast": (1, 1, 1, 1),
    "reduce": (1, 1, 1, 1),
}
# The size of the array if each rank puts in 840 bytes: the sendcount, or n times the sendcount.
WHOLE = {name: (840,) * 4 for name in FACTORS} | {
    name: (1680, 2520, 3360, 6720) for name in ("all_gather", "gather")
}


@pytest.mark.parametrize("bandwidth", [benchmarking, truth], ids=["reference", "judge"])
@pytest.mark.parametrize("collective", truth.COLLECTIVES)
def test_factors_and_sizes_are_those_of_nccl_tests(bandwidth, collective):
    assert set(FACTORS) == set(truth.COLLECTIVES) == set(benchmarking.COLLECTIVES)
    for n, factor, size in zip((2, 3, 4, 8), FACTORS[collective], WHOLE[collective]):
        assert bandwidth.array_bytes(collective, 840, n) == size
        algorithm = bandwidth.algorithm_bandwidth(size, 0.5)
        bus = bandwidth.bus_bandwidth(collective, size, n, 0.5)
        assert algorithm == pytest.approx(2 * size / 10**9) and bus == pytest.approx(
            algorithm * factor
        )


def test_the_lectures_two_figures_are_alike():
    all_reduce = benchmarking.usual_bandwidth(277, 4, "whole")
    reduce_scatter = benchmarking.usual_bandwidth(70, 4, "part")
    assert all_reduce == pytest.approx(297.4, abs=0.05) and reduce_scatter == pytest.approx(
        300.6, abs=0.05
    )


models = st.tuples(st.floats(1e-7, 1e-3), st.floats(1e7, 1e12))
sizes = st.lists(st.integers(10, 30).map(lambda k: 2**k), min_size=2, max_size=12, unique=True)


@given(models, sizes, st.randoms(use_true_random=False))
def test_the_fit_has_the_least_relative_errors(model, sizes, random):
    alpha, beta = model
    seconds = [(alpha + size / beta) * random.uniform(0.9, 1.1) for size in sizes]
    try:
        found = benchmarking.fit_latency_bandwidth(sizes, seconds)
    except ValueError:
        return  # the noise was larger than the effect of the sizes

    def errors(alpha, beta):
        return sum(((alpha + size / beta - t) / t) ** 2 for size, t in zip(sizes, seconds))

    best = errors(*found)
    for change in (0.999, 1.001):
        assert best <= errors(found[0] * change, found[1]) * (1 + 1e-9) + 1e-15
        assert best <= errors(found[0], found[1] * change) * (1 + 1e-9) + 1e-15


@given(models, sizes)
def test_an_exact_model_is_found_again(model, sizes):
    seconds = [model[0] + size / model[1] for size in sizes]
    if max(seconds) < 1.01 * min(seconds):
        return  # the times hardly depend on the bandwidth
    for fit in (benchmarking.fit_latency_bandwidth, truth.fit):
        alpha, beta = fit(sizes, seconds)
        assert abs(alpha - model[0]) <= 1e-5 * max(seconds)
        np.testing.assert_allclose(beta, model[1], rtol=1e-4)


@given(st.floats(1e-7, 1e3), st.lists(st.integers(0, 2**40), min_size=2, max_size=12, unique=True))
def test_equal_times_show_no_bandwidth(seconds, sizes):
    with pytest.raises(ValueError, match="two different"):
        benchmarking.fit_latency_bandwidth(sizes, [seconds] * len(sizes))


def test_half_the_peak_is_reached_where_it_says():
    alpha, beta = 2e-5, 3e9
    size = benchmarking.half_peak_size(alpha, beta)
    assert size / benchmarking.predict_seconds(alpha, beta, size) == pytest.approx(beta / 2)
