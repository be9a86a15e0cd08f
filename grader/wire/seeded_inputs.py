"""Draws large inputs from a seed.

A rank and the judge draw the same inputs, so that the inputs need not be sent. The numbers do not
depend on each other, so a program cannot store them in fewer bytes. If the inputs were copies of a
few rows, a program could store only these rows.
"""

import numpy as np


def draw(seed: int, index: int, count: int) -> np.ndarray:
    """Return ``count`` numbers in [0, 1), which depend only on the seed and the index."""
    return np.random.Generator(np.random.Philox(key=[seed, index])).random(count)


def row_factors(seed: int, rows: int) -> np.ndarray:
    """Return the factors, from 0.5 to 1.5, of the rows of a gradient: see ``backward_passes``."""
    return draw(seed, 0, rows) + 0.5
