"""Draws large inputs from a seed, in a rank and in the judge, so that nobody has to send them.

No part of these numbers follows from another part. So a program cannot store them in fewer bytes.
(It could store copies of a few rows in fewer bytes.)
"""

import numpy as np


def draw(seed: int, index: int, count: int) -> np.ndarray:
    """Return ``count`` numbers in [0, 1), the same for the same seed and the same index."""
    return np.random.Generator(np.random.Philox(key=[seed, index])).random(count)
