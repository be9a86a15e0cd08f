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
NO_BARRIER = "there is no barrier between the turns of two ranks"
ONE_TERM = (
    "each chunk holds the term of one rank only. In the first phase, add what arrives to the chunk."
    " In the second phase, send the chunk that this rank has completed, not the one it began with"
)
TOO_FEW_STEPS = "the second phase ends one step too early: it has n − 1 steps, like the first one"
WRONG_PLACE = (
    "in the second phase, a chunk that arrives is put into the wrong place. It has the number of"
    " the chunk that the left neighbour has sent"
)
WRONG_WAY = (
    "in the second phase, the numbers of the chunks change in the wrong direction. In each step, a"
    " rank sends on the chunk that it received last"
)
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
    several ranks and none has called a barrier, or each has called a barrier exactly once. The
    caller adds the hint to a sentence of the message.
    """
    if len(barriers) < 2 or set(barriers) not in ({0}, {1}):
        return ""
    return f"\nLikely: {ONE_BARRIER if barriers[0] else NO_BARRIER}."


def ring_mistakes(tensors: Sequence[np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Return, for each rank, what a ring all-reduce gives with a mistake in a chunk's number.

    n ranks have 1-D ``tensors`` of a length that n divides. In step s of the first phase rank r
    sends chunk r − s, and adds what it receives to chunk r − s − 1. In step s of the second phase
    it sends chunk r + 1 − s, and puts what it receives into chunk r − s.
    """
    n = len(tensors)
    chunks = [list(np.split(np.asarray(own), n)) for own in tensors]
    for step in range(n - 1):
        before = [list(own) for own in chunks]
        for rank, own in enumerate(chunks):
            place = (rank - step - 1) % n
            own[place] = own[place] + before[rank - 1][place]

    def second(steps: int, way: int, shift: int) -> list[np.ndarray]:
        """Run the second phase in ``steps``, where chunk numbers change by ``way`` in each step.

        What a rank receives is put ``shift`` places beyond the right one.
        """
        ours = [list(own) for own in chunks]
        for step in range(steps):
            before = [list(own) for own in ours]
            for rank, own in enumerate(ours):
                sent = (rank + way * step) % n  # by the left neighbour, rank − 1
                own[(sent + shift) % n] = before[rank - 1][sent]
        return [np.concatenate(own) for own in ours]

    single = np.concatenate([np.split(np.asarray(own), n)[r] for r, own in enumerate(tensors)])
    found = {ONE_TERM: [single] * n}
    if n > 2:
        found |= {
            TOO_FEW_STEPS: second(n - 2, -1, 0),
            WRONG_PLACE: second(n - 1, -1, 1),
            WRONG_WAY: second(n - 1, 1, 0),
        }
    return [{sentence: values[rank] for sentence, values in found.items()} for rank in range(n)]
