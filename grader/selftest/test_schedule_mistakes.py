"""Causes of wrong schedules: each one is named, and right schedules have none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.reference import better_schedules, chunked, schedule_mistakes
from grader.reference.chunked import SPLIT, WHOLE


def visits(n, v, m):
    """Return (chunk, micro-batch) in the order of the forward passes on each stage."""
    return [(c, g + i) for g in range(0, m, n) for c in range(v) for i in range(n)]


def interleaved(n, v, m, warm_up, forward=visits, backward=None):
    """Return the schedules of all stages. Stage s runs ``warm_up(s)`` forward passes first."""
    backward = backward or (lambda *shape: [(v - 1 - c, i) for c, i in forward(*shape)])
    stages = []
    for stage in range(n):
        first = [("F", c, i) for c, i in forward(n, v, m)]
        then = [("BW", c, i) for c, i in backward(n, v, m)]
        ahead = min(warm_up(stage), v * m)
        turns = [action for pair in zip(first[ahead:], then) for action in pair]
        stages.append(first[:ahead] + turns + then[v * m - ahead :])
    return stages


def zero_bubble(n, m, lag, warm_up=None):
    """Return the schedules of all stages. On stage s, W is ``lag(s)`` micro-batches behind B."""
    stages = []
    for stage in range(n):
        ahead = min(warm_up(stage) if warm_up else n - stage - 1, m)
        actions = [("F", 0, i) for i in range(ahead)]
        for i in range(m + lag(stage)):
            actions += [("F", 0, i + ahead)] * (i + ahead < m) + [("B", 0, i)] * (i < m)
            actions += [("W", 0, i - lag(stage))] * (i >= lag(stage))
        stages.append(actions)
    return stages


N, V, M = 3, 2, 9


def long(stage):
    return 2 * (N - stage - 1) + (V - 1) * N


def by_micro_batch(n, v, m):
    return [(c, i) for i in range(m) for c in range(v)]


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        (
            interleaved(N, V, M, long, forward=by_micro_batch),
            " Forward pass number 2 of stage 0 is ('F', 1, 0). In the docstring's order, it would"
            " be ('F', 0, 1): each group of 3 micro-batches goes through all chunks, from the first"
            " chunk to the last, before the next group.",
        ),
        (
            interleaved(N, V, M, long, backward=visits),
            " Backward pass number 1 of stage 0 is ('BW', 0, 0). In the docstring's order, it would"
            " be ('BW', 1, 0): each group of 3 micro-batches goes through all chunks, from the last"
            " chunk to the first, before the next group.",
        ),
        (
            better_schedules.zero_bubble(3, 3)[::-1],
            " Before their first backward pass, the stages run 1, 2 and 3 forward passes. Earlier"
            " stages wait longer for a gradient. So before its first backward pass, a stage must"
            " run at least as many forward passes as the next stage.",
        ),
    ],
)
def test_stuck_stages_have_a_cause(stages, expected):
    kinds = {kind for own in stages for kind, *_ in own}
    assert isinstance(chunked.makespan(stages, dict.fromkeys(kinds, 1.0)), str)
    assert schedule_mistakes.why_stuck(stages) == expected


@pytest.mark.parametrize(
    ("warm_up", "backward", "expected"),
    [
        (
            lambda s: N - s - 1,
            None,
            " Stage 0 runs 3 forward passes before its first backward pass",
        ),
        (lambda s: 0, None, " Stage 0 runs 1 forward pass before its first backward pass"),
        (
            long,
            lambda n, v, m: reversed(visits(n, v, m)),
            " Backward pass number 1 of stage 0 is ('BW', 1, 8). In the docstring's order, it",
        ),
    ],
)
def test_backward_passes_that_come_too_early_have_a_cause(warm_up, backward, expected):
    actions = interleaved(N, V, M, warm_up, backward=backward)[0]
    assert "comes before" in chunked.complete(actions, WHOLE, V, M)
    assert schedule_mistakes.why_too_early(0, actions, N).startswith(expected)


@pytest.mark.parametrize(
    ("warm_up", "expected"),
    [
        (lambda s: 5 - s, ""),  # a longer warm-up is allowed, but not needed
        (lambda s: 5 - s - (s == 1), " Stage 1 runs only 4 forward passes before its first"),
        (lambda s: 6, " Stage 1 runs 7 forward passes before its first backward pass. At most 6"),
    ],
)
def test_late_interleaved_schedules_have_a_cause(warm_up, expected):
    stages = interleaved(N, V, M, warm_up)
    is_late = chunked.makespan(stages, {"F": 1, "BW": 2}) > chunked.interleaved_end(N, V, M, 1, 2)
    assert is_late == bool(expected)
    said = schedule_mistakes.why_interleaved_is_late(stages)
    assert said.startswith(expected) and bool(said) == is_late


@pytest.mark.parametrize(
    ("lag", "warm_up", "expected"),
    [
        (lambda s: s, None, ""),
        (lambda s: 0, None, " On stage 2, each W comes before the next B. This delays the next B"),
        (lambda s: max(s - 1, 0), None, " On stage 1, each W comes before the next B. On stage s"),
        (lambda s: min(s, 1), None, " On stage 2, W is at most 1 micro-batch behind B. On stage s"),
        (lambda s: 6, None, " On stage 0 all W come at the end"),
        (lambda s: 2, None, " On stage 0, W is up to 2 micro-batches behind B"),
        (lambda s: s, lambda s: 0, " Before its first B, stage 0 runs 1 forward pass, but 1F1B"),
        (lambda s: s, lambda s: 2, " Before its first B, stage 1 runs 3 forward passes, but 1F1B"),
    ],
)
def test_late_zero_bubble_schedules_have_a_cause(lag, warm_up, expected):
    stages = zero_bubble(N, 6, lag, warm_up)
    assert all(chunked.complete(actions, SPLIT, 1, 6) is None for actions in stages)
    end = chunked.makespan(stages, dict.fromkeys(SPLIT, 1.0))
    assert (end > chunked.zero_bubble_end(N, 6, 1, 1, 1)) == bool(expected)
    assert schedule_mistakes.why_zero_bubble_is_late(stages).startswith(expected)


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        (
            interleaved(1, 2, 3, lambda s: 2)[0],
            " Stage 0 runs 3 forward passes before its first backward pass. At most 2 are right. Is"
            " the warm-up too long?",
        ),
        (interleaved(1, 2, 3, lambda s: 6)[0], " All forward passes come before all backward"),
        (
            [("F", 0, 0), ("BW", 0, 0), ("F", 0, 1), ("F", 0, 2), ("BW", 0, 1), ("BW", 0, 2)],
            " The warm-up is not too long. After it, forward and backward passes must come in"
            " turn.",
        ),
    ],
)
def test_stages_that_hold_too_much_have_a_cause(actions, expected):
    v = 1 + max(chunk for _, chunk, _ in actions)
    assert chunked.most_alive(actions)[0] > chunked.interleaved_alive(0, 1, v)
    assert schedule_mistakes.why_interleaved_holds_much(0, actions, 1).startswith(expected)


@pytest.mark.parametrize(
    "actions",
    [
        [("F", 0, 1), ("BW", 0, 0), ("F", 0, 2), ("BW", 0, 1), ("F", 0, 3), ("BW", 0, 2)],
        [("forward", 0, 0), ("BW", 0, 0)],
        [("F", 0, 0), ("BW", 0, 0), ("BW", 0, 0)],
        [],
    ],
)
def test_incomplete_schedules_have_no_cause(actions):
    assert chunked.complete(actions, WHOLE, 1, 4)
    assert schedule_mistakes.why_too_early(0, actions, 1) == ""


def test_w_is_no_cause_of_too_many_micro_batches_between_f_and_b():
    order = ["F0", "B0", "F1", "F2", "B1", "B2", "F3", "B3", "W0", "W1", "W2", "W3"]
    actions = [(kind, 0, int(i)) for kind, i in order]
    assert chunked.most_alive(actions, ("B",))[0] == 2
    words = schedule_mistakes.why_zero_bubble_holds_much(1, actions, 2, ("B",))
    assert words == " The warm-up is not too long. After it, F and B must come in turn."


ACTIONS = st.tuples(
    st.sampled_from(["F", "B", "W", "BW", "x"]), st.integers(-9, 9**9), st.integers()
)


@given(st.lists(ACTIONS, max_size=12), st.integers(1, 4))
def test_any_list_of_actions_gives_a_sentence(actions, n):
    """Whatever a submission returns, no list makes the search for a cause fail or take long."""
    assert isinstance(schedule_mistakes.why_too_early(0, actions, n), str)
