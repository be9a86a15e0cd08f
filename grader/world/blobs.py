"""Reads the tensors in a rank's blob as numpy arrays. Nothing in the blob is trusted.

The format is that of safetensors:

    blob = length of the header (8 bytes, little-endian) · header (JSON) · data
    header = {name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, …}

Every length is checked against the number of bytes that have arrived, before an array is made.
Tensors follow each other without gaps, and no two tensors share memory. So the arrays never take
more memory than the blob did.
"""

import math
from typing import Any

import numpy as np

from grader.wire.frames import (
    MAX_BLOB,
    MAX_DIMENSIONS,
    MAX_META,
    MAX_TENSORS,
    FrameError,
    read_object,
)

# The dtypes of the tensors that ranks send: see ``SHIPPABLE`` in ``rank/tensors.py``.
DTYPES: dict[str, np.dtype] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}


def read(blob: bytes) -> dict[str, np.ndarray]:
    """Return the arrays in a blob, by name.

    Raises FrameError if the blob is not of the form that this module describes.
    """
    if not blob:
        return {}
    length = int.from_bytes(blob[:8], "little")
    if len(blob) < 8 or length > min(len(blob) - 8, MAX_META):
        raise FrameError("tensors with an incomplete header")
    header = read_object(blob[8 : 8 + length])
    if len(header) > MAX_TENSORS:
        raise FrameError(f"more than {MAX_TENSORS} tensors")
    data = memoryview(blob)[8 + length :]
    entries = {name: _entry(content, len(data)) for name, content in header.items()}
    end = 0
    for begin, after in sorted((begin, after) for _, _, begin, after in entries.values()):
        if begin != end:
            raise FrameError("tensors with gaps between them, or that share memory")
        end = after
    if end != len(data):
        raise FrameError("more bytes than the tensors have")
    return {
        name: _array(data[begin:end], dtype, shape)
        for name, (dtype, shape, begin, end) in entries.items()
    }


def _entry(content: Any, room: int) -> tuple[np.dtype, list[int], int, int]:
    """Return a tensor's dtype and shape, and the positions of its begin and end in the data.

    ``content`` is the tensor's entry in the header, and ``room`` is the length of the data. All
    positions are in bytes. Raises FrameError if the entry is malformed or does not fit the data.
    """
    if not isinstance(content, dict) or content.keys() != {"dtype", "shape", "data_offsets"}:
        raise FrameError("a tensor without dtype, shape and place")
    dtype, shape, offsets = content["dtype"], content["shape"], content["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise FrameError("a tensor with an unsupported dtype")
    if not _are_counts(shape) or len(shape) > MAX_DIMENSIONS:
        raise FrameError("a tensor without a proper shape")
    if not _are_counts(offsets) or len(offsets) != 2 or not offsets[0] <= offsets[1] <= room:
        raise FrameError("a tensor outside of the data")
    itemsize = DTYPES[dtype].itemsize
    # numpy refuses a shape that is too large even if one of its sizes is 0.
    if math.prod(max(size, 1) for size in shape) * itemsize > MAX_BLOB:
        raise FrameError("a tensor that is too large")
    if math.prod(shape) * itemsize != offsets[1] - offsets[0]:
        raise FrameError("a tensor whose number of bytes does not fit its shape")
    return DTYPES[dtype], shape, *offsets


def _are_counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _array(data: memoryview, dtype: np.dtype, shape: list[int]) -> np.ndarray:
    """Copy one tensor out of a blob into an array that is aligned, writable and owns its bytes."""
    if dtype == np.bool_:  # a byte with the value 2 would be true, but not equal to True
        return (np.frombuffer(bytes(data), np.uint8) != 0).reshape(shape)
    return np.frombuffer(bytes(data), dtype).reshape(shape).copy()
