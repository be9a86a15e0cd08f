"""Regroups known mistakes by rank."""

from collections.abc import Mapping, Sequence
from typing import Any


def by_rank(mistakes: Mapping[str, Sequence], n: int) -> list[dict[str, Any]]:
    """Turn a dict of lists into a list of dicts. Each list has one entry for each of n ranks."""
    return [{name: entries[rank] for name, entries in mistakes.items()} for rank in range(n)]
