"""Reads lists that students' functions return. A value of another form is no error, but None."""

from typing import Any


def are_ints(value: object) -> bool:
    """Return whether a value, which may be anything, is a list or a tuple of ints."""
    return isinstance(value, (list, tuple)) and all(type(number) is int for number in value)


def as_lists(value: Any) -> list[list[int]] | None:
    """Return a list of lists of ints, such as the layers of each stage, or None."""
    if not isinstance(value, (list, tuple)) or not all(map(are_ints, value)):
        return None
    return [list(numbers) for numbers in value]


def as_tuples(value: Any, *types: type) -> list[tuple] | None:
    """Return a list of tuples, such as the actions of a schedule, or None.

    The entries of each tuple have exactly these types.
    """
    if not isinstance(value, (list, tuple)):
        return None
    for entries in value:
        if not isinstance(entries, (list, tuple)) or tuple(map(type, entries)) != types:
            return None
    return [tuple(entries) for entries in value]
