"""The judge of part 8's schedules and its reference have the properties that they must have.

This is tried for any number of stages, chunks and micro-batches, and for any durations.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grader.reference import better_schedules, chunked, single_device
from grader.reference.chunked import SPLIT, WHOLE
from grader.wire.seeded_inputs import draw

few = st.integers(1, 6)
durations = st.floats(0.1, 10)


@settings(deadline=None, max_examples=80)
@given(few, st.integers(1, 4), st.integers(1, 3), durations, durations)
def test_interleaved_schedules_keep_what_problem_8_1_promises(n, v, groups, forward, backward):
    m = groups * n
    stages = better_schedules.interleaved(n, v, m)
    end = chunked.makespan(stages, {"F": forward, "BW": backward})
    assert end == pytest.approx(chunked.interleaved_end(n, v, m, forward, backward))
    work = v * m * (forward + backward)
    assert 1 - work / end == pytest.approx(better_schedules.interleaved_bubble(n, v, m))
    for stage, actions in enumerate(stages):
        assert chunked.complete(actions, WHOLE, v, m) is None
        assert chunked.most_alive(actions)[0] <= chunked.interleaved_alive(stage, n, v)


@settings(deadline=None, max_examples=120)
@given(few, st.integers(1, 15), durations, durations, durations)
def test_zero_bubble_schedules_keep_what_problem_8_3_promises(n, m, f, b, w):
    stages = better_schedules.zero_bubble(n, m)
    end = chunked.makespan(stages, {"F": f, "B": b, "W": w})
    best = chunked.zero_bubble_end(n, m, f, b, w)
    assert end <= best * (1 + 1e-9)
    assert best <= (m + n - 1) * (f + b + w) * (1 + 1e-9)  # never later than 1F1B
    for stage, actions in enumerate(stages):
        assert chunked.complete(actions, SPLIT, 1, m) is None
        assert chunked.most_alive(actions, ("B",))[0] <= n - stage
        assert chunked.most_alive(actions)[0] <= n


@given(few, st.integers(6, 12))
def test_with_equal_times_zero_bubble_is_idle_for_a_third_of_1f1b(n, m):
    end = chunked.zero_bubble_end(n, m, 1, 1, 1)
    whole = chunked.makespan(better_schedules.gpipe(n, m), {"F": 1, "BW": 2})
    assert 3 * (end - 3 * m) == whole - 3 * m == 3 * (n - 1)


@settings(deadline=None, max_examples=60)
@given(few, st.integers(1, 3), st.integers(1, 3), st.data())
def test_what_is_wrong_with_a_schedule_is_said(n, v, groups, data):
    """An action that is left out, repeated, or moved before what it needs is found."""
    m = groups * n
    stages = better_schedules.interleaved(n, v, m)
    stage = data.draw(st.integers(0, n - 1))
    own = stages[stage]
    place = data.draw(st.integers(0, len(own) - 1))
    kind, chunk, i = own[place]
    assert f"{own[place]} is missing" in chunked.complete(
        own[:place] + own[place + 1 :], WHOLE, v, m
    )
    assert "2 times" in chunked.complete([*own, own[place]], WHOLE, v, m)
    strange = [*own, (kind, chunk, m)]
    assert f"{strange[-1]} is not a valid action" in chunked.complete(strange, WHOLE, v, m)
    backwards = own[::-1]
    assert "comes before" in chunked.complete(backwards, WHOLE, v, m)
    assert chunked.as_actions([[kind, chunk]]) is None
    assert chunked.as_actions([[kind, chunk, i]]) == [(kind, chunk, i)]


def test_stages_that_wait_for_each_other_are_named():
    wrong_way = [
        [("F", 0, 0), ("F", 1, 0), ("BW", 0, 0), ("BW", 1, 0)],
        [("F", 0, 0), ("F", 1, 0), ("BW", 1, 0), ("BW", 0, 0)],
    ]
    told = chunked.makespan(wrong_way, {"F": 1, "BW": 1})
    assert told == (
        "no stage can go on: stage 0 waits at ('BW', 0, 0), which needs ('BW', 0, 0) of stage"
        " 1; stage 1 waits at ('BW', 0, 0), which needs ('BW', 1, 0) of stage 0."
    )


@pytest.mark.parametrize("layers", [1, 3])
def test_halves_are_the_whole_backward_pass_and_unlike_each_mistake(layers):
    rng = np.random.default_rng(5)
    weights = [rng.standard_normal((4, 4)) for _ in range(layers)]
    saved = single_device.forward(weights, rng.standard_normal((3, 4)))[1]
    grad_y = rng.standard_normal((3, 4))
    grad_x, kept, gradients = chunked.chunk_backward(weights, saved, grad_y)
    whole_x, whole = single_device.backward(weights, saved, grad_y)
    assert np.allclose(grad_x, whole_x, rtol=1e-12)
    assert all(np.allclose(a, b, rtol=1e-12) for a, b in zip(gradients, whole, strict=True))
    for value in chunked.input_mistakes(weights, saved, grad_y).values():
        assert not np.allclose(value, grad_x, rtol=1e-3)
    for pairs in chunked.kept_mistakes(weights, saved, grad_y, kept).values():
        flat = [np.ravel(array) for pair in pairs for array in pair]
        right = [np.ravel(array) for pair in kept for array in pair]
        assert not all(np.allclose(a, b, rtol=1e-3) for a, b in zip(flat, right))
    for wrong in chunked.weight_mistakes(kept).values():
        assert not all(np.allclose(a, b, rtol=1e-3) for a, b in zip(wrong, gradients))


def test_changes_between_the_halves_add_a_product_to_each_gradient():
    """A gradient gets the sum over all W of xᵀ times the change, wherever the schedule has W."""
    n, v, m, layers = 2, 2, 4, 2
    inputs = [np.random.default_rng(l).standard_normal((2 * m, 3)) for l in range(n * v * layers)]
    parts = [list(range(part * layers, (part + 1) * layers)) for part in range(n * v)]
    cut = [parts[stage::n] for stage in range(n)]
    stages = better_schedules.weights_last(n, v, m)
    seeds, gains = chunked.changes(np.random.default_rng(1), stages, cut, inputs, m)
    assert [len(own) for own in seeds] == [v * m] * n
    assert len({seed for own in seeds for seed in own}) == n * v * m
    expected = [np.zeros((3, 3)) for _ in inputs]
    for own, layers_of, of_stage in zip(stages, cut, seeds):
        for seed, (_, c, i) in zip(of_stage, [action for action in own if action[0] == "W"]):
            for number, layer in enumerate(layers_of[c]):
                change = (draw(seed, number, 6).reshape(2, 3) - 0.5) / (2 * m * 3)
                expected[layer] += inputs[layer][2 * i : 2 * i + 2].T @ change
    for found, due in zip(gains, expected, strict=True):
        assert np.abs(due).max() > 1e-3
        np.testing.assert_allclose(found, due, rtol=1e-12)


def test_mistakes_of_the_bubble_differ_from_it():
    cases = [(4, 2, 8), (2, 3, 2)]
    right = [better_schedules.interleaved_bubble(*case) for case in cases]
    for wrong in chunked.bubble_mistakes(cases).values():
        assert not np.allclose(wrong, right, rtol=1e-3)
