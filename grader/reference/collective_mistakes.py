"""Computes the results of mistakes with collectives. Each constant is a sentence about a mistake.

``OVERWRITTEN`` is a mistake that every function that communicates can have.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

Order = Literal["C", "F"]  # of the entries in memory: row by row, or column by column

MEMORY = (
    "these are the right numbers, in the order of another memory layout. A tensor may be"
    " non-contiguous. clone() and empty_like() of a transpose keep the transposed layout."
    " Communicate contiguous memory"
)
OVERWRITTEN = (
    "the second call overwrote the result of the first call. Return a new tensor from each call"
)
STALE = (
    "the second call returned the result of the first call again. Its tensors may be those of the"
    " first call, but they have new values. Keep no results for later calls"
)
RECIPROCAL = "1/n was computed and rounded, and the sum was multiplied by it. Divide the sum by n"
A_SUM = "this is the sum, but op is another operation. Do you pass op to the collective?"
NO_BARRIER = "there is no barrier between the turns of two ranks"
ONE_TERM = (
    "each chunk holds the term of one rank only. In the first phase, add the received chunk to"
    " your own. In the second phase, send the chunk that this rank has completed, not its initial"
    " chunk"
)
SECOND_ADDED = (
    "in the second phase, received chunks were added. They are complete sums: replace your own"
    " chunk by the received one"
)
NO_SECOND_PHASE = (
    "on each rank, only the chunk that this rank completed is right: the second phase is missing,"
    " or received chunks are not stored"
)
TOO_FEW_STEPS = "the second phase ends one step too early. Both phases need n − 1 steps"
WRONG_CHUNK = (
    "in some step, a wrong chunk is sent, or a received chunk is put in a wrong place. Follow one"
    " chunk through the picture of Problem 1.7"
)
ONE_BARRIER = (
    "each rank called one barrier, and all ranks passed it together. A barrier ends as soon as"
    " every rank has called a barrier. These calls may be on different lines of the code. There are"
    " n turns, and every rank must call a barrier in each turn"
)


def in_memory_order(
    xs: Sequence[np.ndarray], orders: Sequence[Order], combine: Callable[[list], list]
) -> list:
    """Return each rank's result if the ranks take the entries of their tensors in memory order.

    A rank sends its entries in the order in which they lie in memory. It also writes the entries of
    its result in this order. ``orders[rank]`` is the memory order of the rank's tensor: "C", or "F"
    for a transpose. ``combine`` gets a list with the flat entries of each rank, in memory order. It
    returns a list with the flat result of each rank. A result is as large as the rank's input, or
    is None for a rank that gets no result.
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

    ``barriers[rank]`` is the number of barriers that a rank has called. The hint is for two cases:
    no rank has called a barrier, or each rank has called exactly one barrier. In all other cases,
    and on a single rank, return an empty string.
    """
    if len(barriers) < 2 or set(barriers) not in ({0}, {1}):
        return ""
    return f"\nLikely: {ONE_BARRIER if barriers[0] else NO_BARRIER}."


def ring_mistakes(tensors: Sequence[np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Return, for each rank, a dict from each mistake in a ring all-reduce to the wrong result.

    ``tensors[rank]`` is 1-D. Its length is a multiple of n, the number of ranks.
    """
    n = len(tensors)
    terms = np.array([np.split(np.asarray(own), n) for own in tensors])  # [rank, chunk]
    single = np.concatenate([terms[chunk, chunk] for chunk in range(n)])
    found = [{ONE_TERM: single} for _ in range(n)]
    # After the first phase, rank r has added up the terms of chunk c from rank c to rank r.
    after_first = np.array(
        [
            [
                sum(terms[(chunk + step) % n, chunk] for step in range((rank - chunk) % n + 1))
                for chunk in range(n)
            ]
            for rank in range(n)
        ]
    )
    added = after_first.copy()
    for done in range(n - 1):
        sent = [added[rank, (rank + 1 - done) % n].copy() for rank in range(n)]
        for rank in range(n):
            added[rank, (rank - done) % n] += sent[rank - 1]
    for rank, known in enumerate(found if n > 1 else ()):
        known[NO_SECOND_PHASE] = after_first[rank].ravel()
        known[SECOND_ADDED] = added[rank].ravel()
    # If the last step is missing, one chunk on each rank still lacks the right neighbour's term.
    for rank, known in enumerate(found if n > 2 else ()):
        chunks = terms.sum(axis=0)
        chunks[(rank + 2) % n] -= terms[(rank + 1) % n, (rank + 2) % n]
        known[TOO_FEW_STEPS] = chunks.ravel()
    return found
