"""Writes numbers and lists in words for messages: "3 times", "1 message", "1, 2 and 3"."""

from collections.abc import Sequence
from typing import Any


def often(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def counted(count: int, thing: str) -> str:
    """Return a number with its noun. ``thing`` is the noun's singular. Its plural must end in s."""
    return f"{count} {thing}{'s' * (count != 1)}"


def enumerated(things: Sequence[Any]) -> str:
    """Return "a, b and c" for three things, "a and b" for two, and "a" for one."""
    *others, last = map(str, things)
    return f"{', '.join(others)} and {last}" if others else last
