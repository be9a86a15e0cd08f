"""What mistakes leave of a step's gradients and of the losses, made here as ranks make them."""

from types import SimpleNamespace

import numpy as np
import pytest

from grader.reference.data_parallel import (
    ALONE_ON_RANK,
    FROZEN_LEFT_OUT,
    NOT_COPIED_BACK,
    OF_ENTRIES,
    OF_ROWS,
    PASSED_BY,
    STRIDED_LEFT_OUT,
    left_out,
    loss_mistakes,
    own_or_not_copied,
    step_mistakes,
)
from grader.reference.optimizer_reports import optimizer_difference, optimizer_hint
from grader.reference.training_mistakes import (
    DIVIDED_OWN_LOSS,
    OWN_LOSS,
    STOPPED,
    training_mistakes,
)

A, B = np.array([[1.0, 2.0], [3.0, 5.0]]), np.array([[7.0, 11.0], [13.0, 17.0]])
C, D = np.array([[19.0, 23.0], [29.0, 31.0]]), np.array([[37.0, 41.0], [43.0, 47.0]])


def of(known: list[dict], words: str) -> list:
    return [next(left for sentence, left in own.items() if words in sentence) for own in known]


def test_gradients_that_went_wrong():
    known = step_mistakes([[A, B], [C, D]])
    np.testing.assert_equal(of(known, "Average the gradients of all ranks"), [[A, B], [C, D]])
    np.testing.assert_equal(
        of(known, "read the gradients before wait()"), [[A / 2, B / 2], [C / 2, D / 2]]
    )
    np.testing.assert_equal(
        of(known, "these are rank 0's gradients. Did you broadcast"), [[A, B]] * 2
    )
    np.testing.assert_equal(of(known, "once more"), [[(A + C) / 4, (B + D) / 4]] * 2)
    # Rank 0 begins with its last layer, rank 1 with its first.
    np.testing.assert_equal(
        of(known, "different orders"), [[(A + D) / 2, (B + C) / 2], [(B + C) / 2, (A + D) / 2]]
    )


def test_averages_in_memory_order():
    known = step_mistakes([[A], [C]], orders="FC")
    column_by_column = (A.ravel("F") + C.ravel()) / 2
    expected = [[column_by_column.reshape(2, 2, order="F")], [column_by_column.reshape(2, 2)]]
    np.testing.assert_equal(of(known, "lie in memory"), expected)
    assert not any("lie in memory" in name for name in step_mistakes([[A], [C]], orders="FF")[0])
    weights, _ = training_mistakes([A / 10], [[A], [C]], lr=0.1, orders="CF")
    assert any("lie in memory" in name for name in weights[1])


def test_layers_of_different_shapes_cannot_meet():
    assert not any(
        "orders" in name for own in step_mistakes([[A, B[:1]], [C, D[:1]]]) for name in own
    )


def test_a_single_rank_averages_with_nobody_and_may_divide_by_two():
    ((sentence, halves),) = step_mistakes([[A, B]])[0].items()
    assert sentence == "the sum was divided by 2. For the average over one rank, divide it by 1"
    np.testing.assert_equal(halves, [A / 2, B / 2])


@pytest.mark.parametrize("n, is_told", [(2, False), (3, True), (4, False)])
def test_half_is_told_where_it_is_neither_right_nor_summed_over_two(n, is_told):
    known = step_mistakes([[A]] * n)
    assert any("divided by 2" in sentence for sentence in known[0]) is is_told


def test_losses_that_are_sums():
    known = loss_mistakes([A, B], rows=5, width=3)
    np.testing.assert_equal(known[OF_ROWS], [3 * A, 3 * B])
    np.testing.assert_equal(known[OF_ENTRIES], [15 * A, 15 * B])
    assert loss_mistakes([A], rows=1, width=1) == {}


def test_training_that_stops():
    weights, _ = training_mistakes([A / 10], [[A, B, C]], lr=0.1)
    after_two, _ = training_mistakes([A / 10], [[A, B]], lr=0.1)
    stopped = weights[0][STOPPED.format(1, 3)][0]
    np.testing.assert_allclose(stopped, after_two[0][STOPPED.format(1, 2)][0])
    assert STOPPED.format(3, 3) not in weights[0]


OWN, ROOTS = [A, B, C], [D, C, A]


@pytest.mark.parametrize(
    "after, expected",
    [
        ([D, C, C], {FROZEN_LEFT_OUT}),
        ([D, B, C], {STRIDED_LEFT_OUT}),
        ([A, B, C], set()),  # nothing was overwritten
        ([D, C, A], set()),
        ([A, C, A], set()),
        ([D, C, B], set()),  # something else
        (None, set()),
    ],
)
def test_parameters_that_were_left_out(after, expected):
    assert set(left_out(after, OWN, ROOTS, frozen={2}, strided={1, 2})) == expected


GROUP = {
    "lr": 3.0,
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "weight_decay": 0.01,
    "amsgrad": False,
    "maximize": False,
}


@pytest.mark.parametrize(
    "optimizer, words",
    [
        ({"optimizer": "AdamW", "groups": [GROUP]}, None),
        (
            {
                "optimizer": "AdamW",
                "groups": [GROUP | {"eps": np.array(1e-8), "betas": [0.9, 0.999]}],
            },
            None,
        ),
        (
            {"optimizer": "Adam", "groups": [GROUP]},
            "of the type Adam. Use torch.optim.AdamW",
        ),
        (
            {"optimizer": "AdamW", "groups": [GROUP, GROUP | {"eps": 1e-6}]},
            "eps is 1e-06, but AdamW's default is 1e-08",
        ),
        (
            {"optimizer": "AdamW", "groups": [GROUP | {"betas": (0.9, 0.95)}]},
            "betas are (0.9, 0.95)",
        ),
        ({"optimizer": "AdamW", "groups": [GROUP | {"betas": (0.9,)}]}, "betas are (0.9,)"),
        ({"optimizer": "AdamW", "groups": [GROUP | {"amsgrad": True}]}, "amsgrad is True"),
        ({"optimizer": "AdamW", "groups": ["none"]}, "betas are None"),
        ({"groups": []}, "of the type None"),
        ({"optimizer": "AdamW"}, None),
        ("no optimizer", None),
    ],
)
def test_the_defaults_of_an_optimizer(optimizer, words):
    difference = optimizer_difference(optimizer)
    assert difference is None if words is None else words in difference


def test_a_rank_that_divides_its_own_losses():
    _, of_losses = training_mistakes([A / 10], [[A], [B]], lr=0.1)
    for own in of_losses:
        np.testing.assert_allclose(own[DIVIDED_OWN_LOSS], own[OWN_LOSS] / 2)


@pytest.mark.parametrize(
    "rate, counted, steps, words",
    [
        (1e-3, 3, 3, "AdamW trained at lr=0.001, not at lr=0.01"),
        (1e-2, 1, 3, "the optimizer has counted one step"),
        (1e-2, 3, 3, ""),
        (1e-2, 1, 1, ""),
    ],
)
def test_what_the_optimizer_itself_shows(rate, counted, steps, words):
    """Another mistake may have changed the weights, too."""
    state = {"0": {"step": np.array(counted, np.float32)}}
    optimizer = {"optimizer": "AdamW", "groups": [{"lr": rate}], "state": state}
    hint = optimizer_hint([np.zeros(steps), optimizer], lr=1e-2)
    assert hint.startswith(words) and bool(hint) is bool(words)


@pytest.mark.parametrize("value", [None, [], [1, 2], [np.zeros(2), {}], [3, {"groups": [7]}]])
def test_no_optimizer_shows_nothing(value):
    assert optimizer_hint(value, lr=1e-2) == ""


@pytest.mark.parametrize(
    "marks, kinds, sentence",
    [
        (1, ["all_reduce"], PASSED_BY),
        (0, ["barrier", "all_reduce"], NOT_COPIED_BACK),
        (0, ["barrier"], ALONE_ON_RANK),
        (0, [], ALONE_ON_RANK),
    ],
)
def test_own_gradients_after_all_reduces_were_not_copied_back(marks, kinds, sentence):
    run = SimpleNamespace(
        marks=lambda rank, name: [0] * marks,
        operations=lambda rank: [SimpleNamespace(kind=kind) for kind in kinds],
    )
    assert own_or_not_copied(run, 0) == sentence
