"""The references of part 9 have the properties that define them, for any shapes and choices."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grader.reference import attention, attention_mistakes, experts, sequence_pair
from grader.reference.by_rank import split

FEW = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**32 - 1)


def slope(function, array, at, step=1e-6):
    """Return the numerical derivative of a function of an array, in one entry."""
    ahead, back = array.copy(), array.copy()
    ahead[at] += step
    back[at] -= step
    return (function(ahead) - function(back)) / (2 * step)


@FEW
@given(seeds, st.integers(1, 4), st.integers(1, 3), st.integers(1, 4), st.booleans())
def test_gradients_of_attention_are_slopes(seed, n, rows, width, causal):
    rng = np.random.default_rng(seed)
    given_ = [rng.standard_normal((n * rows, width)) for _ in range(3)]
    grad = rng.standard_normal((n * rows, width))
    seen = attention.visible(n * rows, causal)
    found = attention.attention_backward(*given_, grad, causal)
    for index, gradient in enumerate(found):
        at = tuple(rng.integers(0, side) for side in gradient.shape)

        def value(array, index=index):
            changed = [array if i == index else own for i, own in enumerate(given_)]
            return (attention.attention(*changed, seen)[0] * grad).sum()

        assert np.isclose(gradient[at], slope(value, given_[index], at), atol=1e-5)


@FEW
@given(seeds, st.integers(1, 5), st.integers(1, 5), st.integers(1, 6))
def test_gradients_of_the_pair_are_slopes(seed, tokens, width, hidden):
    rng = np.random.default_rng(seed)
    shapes = (width, hidden), (hidden, width), (tokens, width), (tokens, width)
    a, b, x, grad = (rng.standard_normal(shape) for shape in shapes)
    of_x, of_a, of_b = sequence_pair.pair_backward(a, b, x, grad)
    cases = (
        (of_a, a, lambda own: sequence_pair.pair_forward(own, b, x)),
        (of_b, b, lambda own: sequence_pair.pair_forward(a, own, x)),
    )
    for gradient, array, forward in cases:
        at = tuple(rng.integers(0, side) for side in array.shape)
        right = slope(lambda own, forward=forward: (forward(own)[0] * grad).sum(), array, at)
        assert np.isclose(gradient[at], right, atol=1e-5)
    assert of_x.shape == x.shape


@FEW
@given(seeds, st.lists(st.integers(0, 6), min_size=1, max_size=4), st.integers(1, 3))
def test_rows_arrive_where_their_expert_is_and_come_back(seed, counts, each):
    rng, n = np.random.default_rng(seed), len(counts)
    choices = [rng.integers(0, n * each, count) for count in counts]
    routes = experts.routes(choices, each)
    arrived = experts.send([own[:, None] for own in choices], routes)
    for rank, (rows, (order, sent, received, of_expert)) in enumerate(zip(arrived, routes)):
        assert (rows[:, 0] == rank * each + of_expert).all()  # each row at its expert
        assert sum(received) == len(rows) and sum(sent) == counts[rank]
        assert sorted(order) == list(range(counts[rank]))


def flat(value):
    if isinstance(value, (list, tuple)):
        return np.concatenate([flat(part) for part in value]) if value else np.zeros(0)
    return np.asarray(value, np.float64).ravel()


def are_told_apart(right, known):
    """Return whether each mistake differs from the right value and from the other mistakes."""
    values = [flat(right), *map(flat, known.values())]
    return not any(
        a.shape == b.shape and np.allclose(a, b, rtol=1e-6, equal_nan=True)
        for i, a in enumerate(values)
        for b in values[:i]
    )


def test_mistakes_of_the_pair_are_told_apart():
    rng, n = np.random.default_rng(5), 3
    shapes = (4, 6), (6, 4), (6, 4), (6, 4)
    a, b, x, grad = (rng.standard_normal(shape) for shape in shapes)
    right = split(sequence_pair.pair_forward(a, b, x)[0], n)
    of_x, of_a, of_b = sequence_pair.pair_backward(a, b, x, grad)
    of_pair = list(zip(np.split(of_a, n, 1), np.split(of_b, n)))
    known = sequence_pair.pair_backward_mistakes(a, b, x, grad, n)
    for rank in range(n):
        assert are_told_apart(right[rank], sequence_pair.pair_mistakes(a, b, x, n)[rank])
        assert are_told_apart(split(of_x, n)[rank], known[0][rank])
        assert are_told_apart(of_pair[rank], known[1][rank])


@pytest.mark.parametrize("causal", [False, True])
def test_mistakes_of_attention_differ_from_the_right_result(causal):
    rng, n = np.random.default_rng(6), 3
    q, k, v, grad = rng.standard_normal((4, 9, 4))
    output, logsumexp = attention.attention(q, k, v, attention.visible(9, causal))
    backward = attention.attention_backward(q, k, v, grad, causal)
    for right, known in (
        ((output, logsumexp), attention_mistakes.attention_mistakes(q, k, v, causal, n)),
        (backward, attention_mistakes.attention_backward_mistakes(q, k, v, grad, causal, n)),
    ):
        of_ranks = list(zip(*(np.split(array, n) for array in right)))
        for name in known[0].keys() & known[1].keys():
            # A mask may matter on some ranks only.
            same = [
                np.allclose(flat(known[rank][name]), flat(of_ranks[rank]), rtol=1e-3)
                for rank in range(n)
            ]
            assert not all(same), name


def test_mistakes_of_the_mixture_are_told_apart():
    rng, n, each = np.random.default_rng(7), 2, 2
    gate = rng.standard_normal((3, n * each))
    weights = [rng.standard_normal((3, 3)) for _ in range(n * each)]
    mixture = experts.Mixture(gate, weights, [rng.standard_normal((8, 3)) for _ in range(n)])
    grads = [rng.standard_normal((8, 3)) for _ in range(n)]
    for rank in range(n):
        assert are_told_apart(mixture.ys[rank], mixture.forward_mistakes()[rank])
        known = mixture.backward_mistakes(grads)[rank]
        assert are_told_apart(mixture.gradients(grads)[rank], known)


def test_rows_that_are_sent_back_are_those_that_were_sent():
    rng = np.random.default_rng(8)
    rows = [rng.standard_normal((count, 2)) for count in (5, 0, 3)]
    routes = experts.routes([rng.integers(0, 6, len(own)) for own in rows], 2)
    back = experts.send_back(experts.send(rows, routes), routes)
    assert all(np.array_equal(found, own) for found, own in zip(back, rows))
