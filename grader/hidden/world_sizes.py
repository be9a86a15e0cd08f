"""The numbers of ranks on which hidden checks run."""

import numpy as np

SIZES = (1, 2, 3, 4)


def drawn_sizes(rng: np.random.Generator, count: int = 1) -> list[int]:
    """Return different numbers of ranks from 2 to 4, drawn at random.

    A wrong program may be right on some numbers of ranks. A check that would be slow on each of
    them runs on a few, and another grading draws others.
    """
    return [int(n) for n in rng.permutation([2, 3, 4])[:count]]
