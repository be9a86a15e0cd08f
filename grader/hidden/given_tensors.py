"""Makes tensors that the checks of several parts give to student code: weights, memory layouts."""

from grader.check.api import LAYOUTS, Strided


def drawn_weights(rng, layers, width, dtype):
    """Draw the weights of an MLP, each (width, width).

    In all layers, the activations have about the same size.
    """
    return [
        (rng.standard_normal((width, width)) * (2 / width) ** 0.5).astype(dtype)
        for _ in range(layers)
    ]


def rank_layout(rank):
    """Return the layout of a rank's tensors. Each of 4 ranks has a different layout."""
    return LAYOUTS[(1 + rank) % len(LAYOUTS)]


def laid_out_in_turn(array, first, number):
    """Return the array in one of ``LAYOUTS``, or unchanged if ``first`` is None.

    The array with the number 0 has the layout of index ``first``, and each further array has the
    next layout.
    """
    return array if first is None else Strided(array, LAYOUTS[(first + number) % len(LAYOUTS)])
