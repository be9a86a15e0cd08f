"""Schedules are judged by their properties.

The tests use cases by hand, a clock that ticks as an oracle, and any legal schedule.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.reference.pipeline import gpipe, one_forward_one_backward
from grader.reference.schedules import as_actions, complete, makespan, most_alive, warm_up
from grader.world.arrays import Unsendable


def actions(text: str) -> list[tuple[str, int]]:
    """Return the actions of a text: ``"F0 B0"`` → [("forward", 0), ("backward", 0)]."""
    return [({"F": "forward", "B": "backward"}[word[0]], int(word[1:])) for word in text.split()]


counts, durations = st.integers(1, 6), st.integers(1, 7)


# ——— form


@pytest.mark.parametrize(
    "value",
    [
        [("forward", 0), ("backward", 0)],
        (("forward", 0), ("backward", 0)),
        [["forward", 0], ["backward", 0]],
        [("forward", 0), ["backward", 0]],
    ],
    ids=repr,
)
def test_lists_and_tuples_are_read_alike(value):
    assert as_actions(value) == [("forward", 0), ("backward", 0)]


def test_a_schedule_may_be_of_any_length_and_hold_any_number():
    assert as_actions([]) == []
    assert as_actions([("backward", -1), ("forward", 10**9)]) == [
        ("backward", -1),
        ("forward", 10**9),
    ]


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        "F0",
        {"forward": 0},
        np.zeros((2, 2)),
        Unsendable("an object of type Schedule"),
        [None],
        ["F0"],
        [Unsendable("an object of type Action")],
        [np.zeros(2)],
        [{"forward": 0, "backward": 0}],
        [("forward",)],
        [("forward", 0, 1)],
        [()],
        [("fwd", 0)],
        [("Forward", 0)],
        [(None, 0)],
        [(0, "forward")],
        [([], 0)],
        [("forward", "0")],
        [("forward", 0.0)],
        [("forward", True)],
        [("forward", None)],
        [("forward", np.array(0))],
        [("forward", [0])],
        [(np.array(1.0), 0)],
    ],
    ids=repr,
)
def test_what_is_no_schedule_is_none(value):
    assert as_actions(value) is None
    if isinstance(value, list):
        assert (
            as_actions([("forward", 0), *value]) is None
            and as_actions([*value, ("forward", 0)]) is None
        )


@pytest.mark.parametrize("kind", [np.array([1.0, 2.0]), np.array([])], ids=repr)
def test_a_tensor_for_a_kind_is_no_schedule(kind):
    assert as_actions([(kind, 0)]) is None


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 3)
    | st.floats()
    | st.sampled_from(["forward", "backward", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple),
    max_leaves=12,
)


@given(JSON)
def test_whatever_is_read_is_what_was_sent(value):
    read = as_actions(value)
    if read is not None:
        assert read == [tuple(action) for action in value]
        assert all(kind in ("forward", "backward") and type(i) is int for kind, i in read)


# ——— each pass once


@pytest.mark.parametrize(
    "text, m, expected",
    [
        ("F0 B0", 1, None),
        ("F1 F0 B0 B1", 2, None),
        ("", 1, "('forward', 0) is missing"),
        ("F0 B0", 2, "('forward', 1) is missing"),
        ("F0", 1, "('backward', 0) is missing"),
        ("F0 B0 F0", 1, "('forward', 0) is there 2 times, not once"),
        ("F0 B0 B0 B0", 1, "('backward', 0) is there 3 times, not once"),
        (
            "F0 B0 F1",
            1,
            "('forward', 1) is not a valid action: the kinds are forward and backward, the only"
            " micro-batch is 0",
        ),
        (
            "F0 F1 B0 B1 B-1",
            2,
            "('backward', -1) is not a valid action: the kinds are forward and backward, the"
            " micro-batches are 0 to 1",
        ),
        ("B0 F0", 1, "('backward', 0) comes before ('forward', 0)"),
        ("F0 B1 F1 B0", 2, "('backward', 1) comes before ('forward', 1)"),
        ("F1 F2 B1 B2", 2, "('forward', 0) is missing"),  # counted from 1
    ],
)
def test_what_is_missing_or_too_much_is_told(text, m, expected):
    assert complete(actions(text), m) == expected


@given(st.permutations(actions("F0 F1 F2 B0 B1 B2")))
def test_a_permutation_is_complete_where_no_backward_pass_comes_first(schedule):
    early = any(schedule.index(("backward", i)) < schedule.index(("forward", i)) for i in range(3))
    assert (complete(schedule, 3) is not None) is early


# ——— alive


@pytest.mark.parametrize(
    "text, expected",
    [
        ("F0 B0", (1, ("forward", 0))),
        ("F0 F1 B0 B1", (2, ("forward", 1))),
        ("F0 B0 F1 B1", (1, ("forward", 0))),
        ("F0 F1 B0 F2 B1 B2", (2, ("forward", 1))),  # the first time that 2 are alive
        ("F0 F1 B1 F2 F3 B0 B2 B3", (3, ("forward", 3))),
    ],
)
def test_the_most_that_are_alive_are_counted(text, expected):
    assert most_alive(actions(text)) == expected


# ——— time


@pytest.mark.parametrize(
    "stages, forward, backward, expected",
    [
        (["F0 B0"], 1, 2, 3),
        (["F0 B0 F1 B1"], 1, 2, 6),
        (["F0 B0", "F0 B0"], 1, 1, 4),  # there and back
        (["F0 B0"] * 3, 2, 5, 21),
        (["F0 F1 B0 B1"] * 2, 1, 1, 6),
        (["F0 F1 B0 B1", "F0 B0 F1 B1"], 1, 1, 6),
        (["F0 F1 B1 B0"] * 2, 1, 1, 6),  # last in, first out
        (["F0 B0 F1 B1"] * 2, 1, 1, 8),  # one at a time
        (["F0 B0 F1 B1"] * 2, 1, 2, 12),
        (["F0 F1 B0 B1", "F1 F0 B0 B1"], 1, 1, 7),  # the second stage waits for the later one first
        # 10 with a warm-up of 3
        (["F0 F1 B0 F2 B1 B2", "F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"], 1, 1, 12),
        (["F0 F1 F2 B0 B1 B2", "F0 F1 B0 F2 B1 B2", "F0 B0 F1 B1 F2 B2"], 1, 1, 10),
        # Stages go backward in different orders, which is possible.
        (["F0 F1 B1 B0", "F0 B0 F1 B1", "F0 B0 F1 B1"], 1, 1, 11),
        (["F0 F1 B0 B1"], 0.5, 0.25, 1.5),
    ],
)
def test_the_time_is_what_was_found_by_hand(stages, forward, backward, expected):
    assert makespan([actions(text) for text in stages], forward, backward) == expected


@pytest.mark.parametrize(
    "stages, expected",
    [
        (
            ["F0 B0 F1 B1", "F0 F1 B0 B1"],
            "stage 0 waits at ('backward', 0), stage 1 waits at ('forward', 1)",
        ),
        (["B0 F0", "F0 B0"], "stage 0 waits at ('backward', 0), stage 1 waits at ('forward', 0)"),
        (
            ["F0 B0 F1 B1", "F1 B1 F0 B0"],
            "stage 0 waits at ('backward', 0), stage 1 waits at ('forward', 1)",
        ),
        (["F0", "F0 B0 F1"], "stage 1 waits at ('forward', 1)"),  # stage 0 has ended
        (
            ["F0 B0", "F0 F1", "F0 B0"],
            "stage 0 waits at ('backward', 0), stage 1 waits at ('forward', 1)",
        ),
    ],
)
def test_stages_that_wait_for_each_other_are_told(stages, expected):
    found = makespan([actions(text) for text in stages], 1, 1)
    assert (
        found == f"no stage can go on: {expected}. Each of these actions needs the same action"
        " on a neighbouring stage, but that stage waits at this action or before it"
    )


def by_the_clock(stages: list, forward: int, backward: int) -> int | None:
    """Return the same time, found with a clock that ticks, or None if the stages do not end.

    At every tick, each free stage begins what it can.
    """
    ended, doing, at, now = set(), {}, [0] * len(stages), 0
    while True:
        for stage, (action, until) in list(doing.items()):
            if until == now:
                ended.add((stage, action))
                del doing[stage]
        for stage, schedule in enumerate(stages):
            if stage not in doing and at[stage] < len(schedule):
                kind, i = action = schedule[at[stage]]
                giver = stage - 1 if kind == "forward" else stage + 1
                if giver in (-1, len(stages)) or (giver, action) in ended:
                    doing[stage] = action, now + (forward if kind == "forward" else backward)
                    at[stage] += 1
        if not doing:
            return now if at == [len(schedule) for schedule in stages] else None
        now += 1


@st.composite
def legal(draw) -> list:
    """Draw schedules of all stages, made by carrying out possible actions in any order at all."""
    p, m = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    stages: list[list] = [[] for _ in range(p)]
    for _ in range(2 * p * m):
        possible = [
            (s, (kind, i))
            for s in range(p)
            for kind in ("forward", "backward")
            for i in range(m)
            if (kind, i) not in stages[s]
            and (s == 0 or kind == "backward" or (kind, i) in stages[s - 1])
            and (
                kind == "forward"
                or (("forward", i) in stages[s] and (s == p - 1 or (kind, i) in stages[s + 1]))
            )
        ]
        stage, action = draw(st.sampled_from(possible))
        stages[stage].append(action)
    return stages


@given(legal(), durations, durations)
def test_legal_schedules_take_the_time_that_the_clock_says_and_none_is_faster_than_gpipe(
    stages, f, b
):
    p, m = len(stages), len(stages[0]) // 2
    assert all(complete(schedule, m) is None for schedule in stages)
    found = makespan(stages, f, b)
    assert found == by_the_clock(stages, f, b)
    assert found >= (m + p - 1) * (f + b)


some_order = st.permutations(actions("F0 F1 F2 B0 B1 B2"))


@given(st.lists(some_order, min_size=1, max_size=3), durations, durations)
def test_any_orders_go_on_just_where_they_do_by_the_clock(stages, f, b):
    found, expected = makespan(stages, f, b), by_the_clock(stages, f, b)
    assert isinstance(found, str) if expected is None else found == expected


# ——— schedules to be carried out


@given(counts, counts, durations, durations)
def test_gpipe_and_1f1b_take_the_same_time(p, m, f, b):
    for schedule in (gpipe, one_forward_one_backward):
        assert makespan([schedule(stage, p, m) for stage in range(p)], f, b) == (m + p - 1) * (
            f + b
        )


@given(counts, counts)
def test_gpipe_and_1f1b_have_each_pass_once_in_one_order(p, m):
    for schedule in (gpipe, one_forward_one_backward):
        for stage in range(p):
            made = schedule(stage, p, m)
            assert complete(made, m) is None
            for wanted in ("forward", "backward"):
                assert [i for kind, i in made if kind == wanted] == list(range(m))


@given(counts, counts)
def test_1f1b_keeps_few_micro_batches_alive_and_gpipe_all(p, m):
    for stage in range(p):
        assert most_alive(one_forward_one_backward(stage, p, m))[0] == min(p - stage, m)
        assert most_alive(gpipe(stage, p, m))[0] == m


def test_1f1b_is_the_one_of_the_papers():
    assert one_forward_one_backward(0, 3, 4) == actions("F0 F1 F2 B0 F3 B1 B2 B3")
    assert one_forward_one_backward(2, 3, 4) == actions("F0 B0 F1 B1 F2 B2 F3 B3")
    assert gpipe(1, 3, 2) == actions("F0 F1 B0 B1")


@pytest.mark.parametrize(
    "schedule, due, words",
    [
        ("F0 F1 B0 F2 B1 B2", 2, ""),
        ("F0 F1 F2 B0 B1 B2", 2, " runs 3 forward passes, not 2."),
        (
            "F0 B0 F1 B1 F2 B2",
            3,
            " runs 1 forward pass, not 3. So the later stages have nothing to do.",
        ),
        (  # two micro-batches are alive, but only later
            "F0 B0 F1 F2 B1 B2",
            3,
            " runs 1 forward pass, not 3. So the later stages have nothing to do.",
        ),
    ],
)
def test_a_warm_up_is_told_its_direction(schedule, due, words):
    sentence = warm_up(1, actions(schedule), due)
    assert sentence == (f" Before its first backward pass, stage 1{words}" if words else "")
