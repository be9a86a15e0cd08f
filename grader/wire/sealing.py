"""Seals the arguments of later calls, so that a rank cannot read them before these calls.

A rank gets the arguments of all calls of a check at once, so that they have their memory before the
first call. But they may tell what an earlier call has to return: a backward pass gets what its
forward pass has saved. So their bytes are combined, by exclusive or, with random bytes that follow
from a key. The rank gets the key when it has ended the call before: from the hub, or from the judge
if there is no hub.
"""

import secrets

import numpy as np

CHUNK = 1 << 16  # bytes that are combined at a time; a multiple of 8


def new_key() -> int:
    return secrets.randbits(62)


class Stream:
    """The random bytes for one of the tensors of a call, or for its text, in order."""

    def __init__(self, key: int, number: int) -> None:
        self.bits = np.random.Philox(key=[key, number])

    def next(self, count: int) -> np.ndarray:
        """Return the next bytes, as uint8. Only the last ``count`` need not be a multiple of 8."""
        return self.bits.random_raw(-(-count // 8)).view(np.uint8)[:count]


def sealed(array: np.ndarray, key: int, number: int) -> np.ndarray:
    """Return a contiguous array of the same shape with other bytes.

    Booleans become bytes, because torch does not copy a boolean that is neither 0 nor 1 as it is.
    """
    own, is_bool = np.frombuffer(array.tobytes(), np.uint8), array.dtype == np.bool_
    combined = own ^ Stream(key, number).next(len(own))
    return combined.view(np.uint8 if is_bool else array.dtype).reshape(array.shape)
