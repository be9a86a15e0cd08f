"""How gradients are packed, and what mistakes leave in their bytes and values, found by hand."""

import numpy as np
import pytest
import torch

from grader.diagnosis.comparison import rounding
from grader.hidden import bucket_problem
from grader.reference.buckets import (
    ALL_IN_ONE,
    AS_THEY_FILL,
    BY_ARRIVAL,
    BY_USERS,
    ENTRIES,
    FIRST_FIT,
    FROM_THE_FIRST,
    FROZEN_TAKES_ROOM,
    NEVER_FULL,
    OVERFULL,
    SINGLE,
    TIED_LAST,
    TIED_TWICE,
    buckets_of,
    packing_mistakes,
    pass_mistakes,
)
from grader.reference.data_parallel import BEFORE_ACCUMULATION, TOO_EARLY


@pytest.mark.parametrize(
    "registered, frozen, sizes, most, expected",
    [
        ([0, 1, 2], [], [8, 8, 8], 16, [[2, 1], [0]]),  # the docstring's example
        ([0, 1, 2], [], [8, 16, 8], 16, [[2], [1], [0]]),
        ([0, 1, 2], [], [8, 99, 8], 16, [[2], [1], [0]]),
        ([0, 1, 2], [1], [8, 8, 8], 16, [[2, 0]]),
        ([0, 1, 0, 2], [], [8, 8, 8], 16, [[2, 1], [0]]),
        ([], [], [], 16, []),
    ],
)
def test_buckets_are_filled_from_the_last_parameter_while_it_fits(
    registered, frozen, sizes, most, expected
):
    assert buckets_of(registered, frozen, dict(enumerate(sizes)), most) == expected


@pytest.mark.parametrize(
    "sentence, registered, frozen, sizes, most, expected",
    [
        (FIRST_FIT, [0, 1, 2], [], [8, 16, 8], 16, [16, 16]),
        (FROM_THE_FIRST, [0, 1, 2], [], [8, 8, 4], 16, [16, 4]),
        (TIED_LAST, [0, 3, 1, 0, 2], [], [128, 128, 128, 8], 136, [128, 128, 136]),
        (TIED_TWICE, [0, 1, 0], [], [8, 4, 2], 8, [8, 4, 8]),
        (FROZEN_TAKES_ROOM, [0, 1, 2], [1], [8, 8, 8], 16, [8, 8]),
        (SINGLE, [0, 1, 2], [], [8, 8, 8], 16, [8, 8, 8]),
        (ALL_IN_ONE, [0, 1, 2], [], [8, 8, 8], 16, [24]),
        (OVERFULL, [0, 1, 2, 3], [], [8, 8, 8, 4], 16, [20, 8]),
        (NEVER_FULL, [0, 1, 2], [], [8, 8, 8], 16, [8, 8, 8]),
        (ENTRIES, [0, 1, 2], [], [8, 8, 8], 16, [24]),
    ],
)
def test_mistakes_in_packing_show_in_the_bytes(sentence, registered, frozen, sizes, most, expected):
    assert (
        packing_mistakes(registered, frozen, dict(enumerate(sizes)), most, 4)[sentence] == expected
    )


def test_a_mistake_that_changes_nothing_is_none():
    assert ALL_IN_ONE not in packing_mistakes([0, 1], [], {0: 8, 1: 8}, 16, 8)


A, B, C, D = (np.full((2, 2), value) for value in (1.0, 10.0, 100.0, 1000.0))
SHAPES = {0: (2, 2), 1: (2, 2)}


def left(known: list[dict], sentence: str) -> list:
    begin = sentence.partition("{}")[0]
    return [next(value for name, value in own.items() if name.startswith(begin)) for own in known]


def test_an_average_over_the_users_alone():
    known = pass_mistakes([{1: B, 0: A}, {1: D}], [[1, 0]], SHAPES)
    np.testing.assert_equal(left(known, BY_USERS), [[A, (B + D) / 2]] * 2)


def test_gradients_in_the_order_in_which_they_become_ready():
    known = pass_mistakes([{1: B, 0: A}, {0: C, 1: D}], [[1, 0]], SHAPES)
    np.testing.assert_equal(
        left(known, BY_ARRIVAL), [[(A + D) / 2, (B + C) / 2], [(B + C) / 2, (A + D) / 2]]
    )


def test_buckets_that_begin_as_they_fill():
    known = pass_mistakes([{1: B, 0: A}, {0: C, 1: D}], [[1], [0]], SHAPES)
    np.testing.assert_equal(
        left(known, AS_THEY_FILL), [[(A + D) / 2, (B + C) / 2], [(B + C) / 2, (A + D) / 2]]
    )
    assert any(
        "buckets 0, 1 on rank 0 and buckets 1, 0 on rank 1" in sentence for sentence in known[0]
    )


def test_gradients_of_several_shapes_cannot_meet():
    ready = [{1: B.ravel(), 0: A}, {0: C, 1: D.ravel()}]
    known = pass_mistakes(ready, [[1], [0]], {0: (2, 2), 1: (4,)})
    assert left(known, AS_THEY_FILL) == left(known, BY_ARRIVAL) == [[None, None]] * 2


def test_a_single_rank_meets_nobody():
    (known,) = pass_mistakes([{0: A}], [[0]], SHAPES)
    assert known.keys() == {BEFORE_ACCUMULATION, TOO_EARLY}


def test_a_bucket_that_begins_too_early_lacks_the_later_gradients():
    zeros = np.zeros_like(A)
    known = pass_mistakes([{1: B, 0: A}, {0: C, 1: D}], [[1, 0]], SHAPES)
    np.testing.assert_equal(left(known, TOO_EARLY), [[C / 2, B / 2]] * 2)
    np.testing.assert_equal(left(known, BEFORE_ACCUMULATION), [[zeros, zeros]] * 2)


def test_a_bucket_waits_for_its_turn_before_it_begins_too_early():
    # Parameter 2 has the first bucket. Its gradient is ready last, so nothing is sent too early.
    shapes = SHAPES | {2: A.shape}
    known = pass_mistakes([{1: B, 0: A, 2: C}] * 2, [[2], [1, 0]], shapes)
    np.testing.assert_equal(left(known, TOO_EARLY), [[A, B, C]] * 2)


@pytest.mark.long
def test_rounding_errors_stay_far_below_the_tolerance():
    """One device of torch computes twelve layers, the most that a check has."""
    rng = np.random.default_rng(1)
    layers, most = list(range(12)), rounding(np.float64).relative / 2
    for _ in range(300):
        made = bucket_problem.passes_of(rng, 1, [layers])
        weights = [torch.tensor(w, requires_grad=True) for w in made.weights]
        y = torch.tensor(made.shards[0][0])
        for weight in weights:
            y = torch.nn.functional.gelu(y @ weight)
        y.square().mean().backward()
        for weight, expected in zip(weights, made.expected[0]):
            assert np.abs(weight.grad.numpy() - expected).max() < most * np.abs(expected).max()


def test_sensitive_passes_are_found():
    """About a tenth of the passes with twelve layers are sensitive. None with two layers is."""
    rng = np.random.default_rng(1)
    drawn = {
        count: [
            bucket_problem._is_sensitive(
                bucket_problem._draw_passes(rng, 1, [list(range(count))], dtype=dtype), rng
            )
            for _ in range(60)
        ]
        for count, dtype in ((2, np.float32), (12, np.float64))
    }
    assert 0 < sum(drawn[12]) < 30 and not any(drawn[2])
