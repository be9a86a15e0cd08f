"""Converts the values in a check to arguments of a call."""

from typing import Any

import numpy as np


def tensor(value: Any, dtype: Any = np.float32) -> np.ndarray:
    return np.array(value, dtype=dtype)


def as_argument(value: Any) -> Any:
    """Convert a value so that a call can send it. A list of numbers becomes a float32 tensor."""
    if isinstance(value, np.generic):  # numpy turns arrays of shape () into scalars
        return np.asarray(value)
    return tensor(value) if _is_numbers(value) else value


def _is_numbers(value: Any) -> bool:
    """Return whether this is a list of plain numbers, or of such lists, and no list is empty."""
    return (
        isinstance(value, list)
        and all(type(v) in (int, float) or _is_numbers(v) for v in value)
        and bool(value)
    )
