"""Seals the arguments of later calls, so that a rank cannot read them before these calls.

A rank gets the arguments of all calls of a check together. So their memory is allocated before the
first call. But these arguments may reveal the correct result of an earlier call: a backward pass
gets the values that its forward pass has saved. So the arguments' bytes are combined, by exclusive
or, with random bytes that follow from a key. The rank gets the key of a call when it has ended the
previous call. The hub sends the key. If there is no hub, the judge sends it.
"""

import secrets

import numpy as np

CHUNK = 1 << 16  # bytes that are combined at a time; a multiple of 8


def new_key() -> int:
    return secrets.randbits(62)


class Stream:
    """The random bytes for a sealed argument: for its JSON text, and then for each tensor."""

    def __init__(self, key: int) -> None:
        self.bits = np.random.Philox(key=key)

    def next(self, count: int) -> np.ndarray:
        """Return the next ``count`` bytes, as uint8.

        The bytes up to the next multiple of 8 are left out. So both ends must split a tensor at
        multiples of 8 only.
        """
        return self.bits.random_raw(-(-count // 8)).view(np.uint8)[:count]


def sealed(array: np.ndarray, stream: Stream) -> np.ndarray:
    """Return a sealed copy of an array: contiguous, of the same shape, with unreadable bytes.

    The bytes are combined with the next bytes of the stream. Sealed booleans have the dtype uint8,
    because torch changes a boolean other than 0 and 1 when it copies it.
    """
    own, is_bool = np.frombuffer(array.tobytes(), np.uint8), array.dtype == np.bool_
    combined = own ^ stream.next(len(own))
    return combined.view(np.uint8 if is_bool else array.dtype).reshape(array.shape)
