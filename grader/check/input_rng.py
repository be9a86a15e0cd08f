"""Makes the random generators that checks draw their inputs from."""

import hashlib

import numpy as np


def make_rng(seed: int, name: str) -> np.random.Generator:
    """Return a random generator for the session's ``seed`` and a name, such as a check's id.

    Nobody can use the numbers of this generator to compute the seed, or to compute the numbers of a
    generator with another name.
    """
    key = hashlib.blake2b(str(seed).encode()).digest()
    stream = hashlib.blake2b(name.encode(), key=key).digest()
    return np.random.default_rng(np.frombuffer(stream, np.uint32))
