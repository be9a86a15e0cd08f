"""What well-known mistakes with collectives leave behind, by the sentence that names them."""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

MEMORY = (
    "the right numbers in the order of another memory layout. A tensor need not be contiguous, and"
    " clone() and empty_like() of a transpose are transposed, too: communicate contiguous memory"
)
RECIPROCAL = "multiplied by 1/n, which rounds 1/n first: divide by n"
ONE_BARRIER = (
    "each rank calls one barrier, and these meet: a barrier is over as soon as all ranks have"
    " called it, whatever line they call it in. There are n turns, and every rank takes part in the"
    " barrier of each"
)


def in_memory_order(
    xs: Sequence[np.ndarray], orders: Sequence[Literal["C", "F"]], combine: Callable[[list], list]
) -> list:
    """What each rank has where the ranks exchange memory as it lies, and each reads it as its own
    tensor lies.

    ``orders[rank]`` is "C", or "F" for a transpose; ``combine`` gives all ranks' results, of the
    shape of their inputs, or None.
    """
    lying = [x.ravel(order) for x, order in zip(xs, orders)]
    read = zip(combine(lying), xs, orders)
    return [
        None if memory is None else memory.reshape(x.shape, order=order)
        for memory, x, order in read
    ]


def reciprocal(total: np.ndarray, n: int) -> np.ndarray:
    """The sum times 1/n, in its own dtype."""
    return total * total.dtype.type(1 / n)


def barrier_hint(barriers: Sequence[int]) -> str:
    """What to add to a sentence about ranks that do not take turns, from how often each has called
    a barrier.
    """
    return f"\nLikely: {ONE_BARRIER}." if len(barriers) > 1 and set(barriers) == {1} else ""
