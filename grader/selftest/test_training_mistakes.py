"""What mistakes leave of a step's gradients and of the losses, made here as ranks make them."""

import numpy as np

from grader.judging.training_mistakes import DIVIDED_OWN_LOSS, OWN_LOSS, step_mistakes, training_mistakes

A, B = np.array([[1.0, 2.0], [3.0, 5.0]]), np.array([[7.0, 11.0], [13.0, 17.0]])
C, D = np.array([[19.0, 23.0], [29.0, 31.0]]), np.array([[37.0, 41.0], [43.0, 47.0]])


def of(known: list[dict], words: str) -> list:
    return [next(left for sentence, left in own.items() if words in sentence) for own in known]


def test_gradients_that_went_wrong():
    known = step_mistakes([[A, B], [C, D]])
    np.testing.assert_equal(of(known, "averaged with nobody"), [[A, B], [C, D]])
    np.testing.assert_equal(of(known, "read before wait()"), [[A / 2, B / 2], [C / 2, D / 2]])
    np.testing.assert_equal(of(known, "once more"), [[(A + C) / 4, (B + D) / 4]] * 2)
    # Rank 0 begins with its last layer, rank 1 with its first.
    np.testing.assert_equal(of(known, "different orders"), [[(A + D) / 2, (B + C) / 2], [(B + C) / 2, (A + D) / 2]])


def test_layers_of_different_shapes_cannot_meet():
    assert not any("orders" in name for own in step_mistakes([[A, B[:1]], [C, D[:1]]]) for name in own)


def test_a_single_rank_averages_with_nobody():
    assert step_mistakes([[A, B]]) == [{}]


def test_a_rank_that_divides_its_own_losses():
    _, of_losses = training_mistakes([A / 10], [[A], [B]], lr=0.1)
    for own in of_losses:
        np.testing.assert_allclose(own[DIVIDED_OWN_LOSS], own[OWN_LOSS] / 2)
