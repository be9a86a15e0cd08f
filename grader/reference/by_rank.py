"""Divides arrays and known mistakes between the ranks."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def by_rank(mistakes: Mapping[str, Sequence], n: int) -> list[dict[str, Any]]:
    """Turn a dict of lists into a list of dicts. Each list has one entry for each of n ranks."""
    return [{name: entries[rank] for name, entries in mistakes.items()} for rank in range(n)]


def split(array: np.ndarray, n: int) -> list[np.ndarray]:
    """Return n equal parts of an array: the consecutive rows of each rank."""
    return np.split(array, n)
