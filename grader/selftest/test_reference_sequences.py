"""The references of part 9 have the properties that define them, for any shapes and choices."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from grader.reference import experts, sequences

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
    seen = sequences.visible(n * rows, causal)
    found = sequences.attention_backward(*given_, grad, causal)
    for index, gradient in enumerate(found):
        at = tuple(rng.integers(0, side) for side in gradient.shape)

        def value(array, index=index):
            changed = [array if i == index else own for i, own in enumerate(given_)]
            return (sequences.attention(*changed, seen)[0] * grad).sum()

        assert np.isclose(gradient[at], slope(value, given_[index], at), atol=1e-5)


@FEW
@given(seeds, st.integers(1, 5), st.integers(1, 5), st.integers(1, 6))
def test_gradients_of_the_pair_are_slopes(seed, tokens, width, hidden):
    rng = np.random.default_rng(seed)
    shapes = (width, hidden), (hidden, width), (tokens, width), (tokens, width)
    a, b, x, grad = (rng.standard_normal(shape) for shape in shapes)
    of_x, of_a, of_b = sequences.pair_backward(a, b, x, grad)
    cases = (
        (of_a, a, lambda own: sequences.pair_forward(own, b, x)),
        (of_b, b, lambda own: sequences.pair_forward(a, own, x)),
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
