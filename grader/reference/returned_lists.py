"""Reads lists that students' functions return, and checks the form of these lists."""

from typing import Any


def are_ints(value: object) -> bool:
    """Return whether a value of any type is a list or a tuple of ints."""
    return isinstance(value, (list, tuple)) and all(type(number) is int for number in value)


def as_lists(value: Any) -> list[list[int]] | None:
    """Return the value as a list of lists of ints, or None if it has another form."""
    if not isinstance(value, (list, tuple)) or not all(map(are_ints, value)):
        return None
    return [list(numbers) for numbers in value]


def as_tuples(value: Any, *types: type) -> list[tuple] | None:
    """Return the value as a list of tuples, or None if it has another form.

    The entries of each tuple must have exactly these types.
    """
    if not isinstance(value, (list, tuple)):
        return None
    for entries in value:
        if not isinstance(entries, (list, tuple)) or tuple(map(type, entries)) != types:
            return None
    return [tuple(entries) for entries in value]
