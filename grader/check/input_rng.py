"""Makes the random generators that checks draw their inputs from."""

import hashlib

import numpy as np


def make_rng(seed: int, name: str) -> np.random.Generator:
    """Return a random generator for the session's ``seed`` and a name, such as a check's id.

    From what it draws, nobody can compute the seed, or what the generator of another name draws.
    """
    key = hashlib.blake2b(str(seed).encode()).digest()
    stream = hashlib.blake2b(name.encode(), key=key).digest()
    return np.random.default_rng(np.frombuffer(stream, np.uint32))
