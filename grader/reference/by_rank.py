"""Divides arrays and known mistakes between the ranks."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def by_rank(mistakes: Mapping[str, Sequence], n: int) -> list[dict[str, Any]]:
    """Return one dict for each of n ranks. Each list in ``mistakes`` has one entry per rank."""
    return [{name: entries[rank] for name, entries in mistakes.items()} for rank in range(n)]


def split(array: np.ndarray, n: int) -> list[np.ndarray]:
    """Return n equal parts of an array: the consecutive rows of each rank."""
    return np.split(array, n)
