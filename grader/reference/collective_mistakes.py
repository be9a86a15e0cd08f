"""Computes the results of well-known mistakes with collectives, and holds sentences about them."""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

MEMORY = (
    "these are the right numbers, in the order of another memory layout. A tensor may be"
    " non-contiguous. clone() and empty_like() of a transpose keep the transposed layout."
    " Communicate contiguous memory"
)
RECIPROCAL = "the sum was multiplied by 1/n, so that 1/n was rounded first. Divide by n"
ONE_BARRIER = (
    "each rank called one barrier, and these barriers met. A barrier ends as"
    " soon as all ranks have called it, on whatever line. There are n turns, and"
    " every rank must take part in the barrier of each turn"
)


def in_memory_order(
    xs: Sequence[np.ndarray], orders: Sequence[Literal["C", "F"]], combine: Callable[[list], list]
) -> list:
    """Return each rank's result if the ranks send entries in the order of their memory.

    Each rank reads the result in the memory order of its own tensor. ``orders[rank]`` is this
    order: "C", or "F" for a transpose. ``combine`` gets the flat memory of every rank. For each
    rank it returns a flat result as large as the rank's input, or None if the rank has no result.
    """
    lying = [x.ravel(order) for x, order in zip(xs, orders)]
    read = zip(combine(lying), xs, orders)
    return [
        None if memory is None else memory.reshape(x.shape, order=order)
        for memory, x, order in read
    ]


def reciprocal(total: np.ndarray, n: int) -> np.ndarray:
    """Return the sum times 1/n, computed in the sum's own dtype."""
    return total * total.dtype.type(1 / n)


def barrier_hint(barriers: Sequence[int]) -> str:
    """Return a hint for ranks that do not take turns, or an empty string.

    ``barriers`` has the number of barrier calls of each rank. The hint is returned if there are
    several ranks and each has called a barrier exactly once. The caller adds the hint to a sentence
    of the message.
    """
    return f"\nLikely: {ONE_BARRIER}." if len(barriers) > 1 and set(barriers) == {1} else ""
