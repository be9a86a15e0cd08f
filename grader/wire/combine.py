"""Computes what each rank of a collective receives, from the bytes that all ranks have sent.

This module runs in the hub. It needs numpy only.
"""

from collections.abc import Callable

import numpy as np

from grader.wire.frames import UNFILLED

REDUCTIONS: dict[str, Callable] = {
    "sum": np.add,
    "average": np.add,
    "product": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}
NAMES = (
    *("float16", "float32", "float64", "complex64", "complex128", "bool"),
    *("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
)
ITEMSIZES = {name: np.dtype(name).itemsize for name in NAMES} | {"bfloat16": 2}


def reduced(blobs: list[bytes], dtype: str, reduction: str) -> bytes:
    """Return the blob that combines the blobs of all ranks entry by entry, in the order of ranks.

    All blobs hold numbers of ``dtype``.
    """
    total = _read(blobs[0], dtype)
    for blob in blobs[1:]:
        total = REDUCTIONS[reduction](total, _read(blob, dtype), dtype=total.dtype)
    if reduction == "average":
        total = (
            total / total.dtype.type(len(blobs))
            if total.dtype.kind in "fc"
            else total // len(blobs)
        )
    return _write(total, dtype)


def can_reduce(dtype: str | None, reduction: str | None) -> bool:
    """Return whether numbers of this dtype can be combined by this reduction."""
    if dtype not in ITEMSIZES or reduction not in REDUCTIONS:
        return False
    kind = "f" if dtype == "bfloat16" else np.dtype(dtype).kind
    refused = {"f": ("band", "bor", "bxor"), "c": ("band", "bor", "bxor", "min", "max")}
    return reduction not in refused.get(kind, ())


def unfilled(blob: bytes | np.ndarray, dtype: str) -> bytes:
    """Return as many bytes as ``blob`` has, to fill memory in which no result has arrived yet.

    The entries are nan if the dtype is floating-point or complex, else ``UNFILLED``.
    """
    size = len(blob) // ITEMSIZES[dtype]
    if dtype == "bfloat16":
        return _write(np.full(size, np.nan, np.float32), dtype)
    kind = np.dtype(dtype)
    return np.full(size, np.nan if kind.kind in "fc" else UNFILLED, kind).tobytes()


def even_powers(blob: bytes, dtype: str) -> tuple[float, float]:
    """Return the sum of the squares of a blob's entries, and the sum of their fourth powers.

    Apart from rounding, the sums do not depend on the order of the entries. They are nan or inf if
    an entry is not finite.

    If the blob ends within an entry, zeros complete this entry.
    """
    if missing := -len(blob) % ITEMSIZES[dtype]:
        blob = bytes(blob) + bytes(missing)
    with np.errstate(all="ignore"):
        squares = np.square(np.abs(_read(blob, dtype)), dtype=np.float64)
        return float(squares.sum()), float(np.square(squares).sum())


def cut(blob: bytes, n: int) -> list[bytes]:
    """Return the blob cut into n parts of equal length."""
    size = len(blob) // n
    return [blob[i * size : (i + 1) * size] for i in range(n)]


def cut_by(blob: bytes, counts: list[int], itemsize: int) -> list[bytes]:
    """Cut the blob into parts, and return them. Part i has ``counts[i]`` elements."""
    ends = np.cumsum([0, *counts]) * itemsize
    return [blob[begin:end] for begin, end in zip(ends, ends[1:])]


def _read(blob: bytes, dtype: str) -> np.ndarray:
    """Return the entries of a blob as an array to compute with.

    numpy has no bfloat16. So each bfloat16 becomes the upper half of a float32.
    """
    if dtype == "bfloat16":
        return (np.frombuffer(blob, np.uint16).astype(np.uint32) << 16).view(np.float32)
    return np.frombuffer(blob, dtype)


def _write(values: np.ndarray, dtype: str) -> bytes:
    if dtype != "bfloat16":
        return values.astype(dtype, copy=False).tobytes()
    bits = values.astype(np.float32, copy=False).view(np.uint32)
    # Round to the nearest bfloat16. If two are equally near, round to the even one.
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)
    return np.where(np.isnan(values), 0x7FC0, rounded >> 16).astype(np.uint16).tobytes()
