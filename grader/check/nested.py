"""Finds arrays, containers and missing parts in nested values, such as arguments and results."""

from typing import Any

import numpy as np

from grader.world.arrays import RequiresGrad, Strided, Unsendable


def arrays(value: Any) -> list[np.ndarray]:
    """Return all arrays of nested lists, tuples and dictionaries."""
    if isinstance(value, (Strided, RequiresGrad)):
        return arrays(value.array)
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return (
        [array for item in value for array in arrays(item)]
        if isinstance(value, (list, tuple))
        else []
    )


def is_whole(value: Any) -> bool:
    """Return whether a rank could send back all parts of nested lists, tuples and dictionaries."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return all(map(is_whole, value))
    return not isinstance(value, Unsendable)


def containers(arguments: list) -> str:
    """Return words for the kinds of containers among arguments: "a list", "a list or a dict"."""
    found: set[str] = set()
    inside = list(arguments)
    while inside:
        value = inside.pop()
        if isinstance(value, dict):
            found.add("a dict")
            inside += value.values()
        elif isinstance(value, (list, tuple)):
            found |= {"a list"} if isinstance(value, list) else set()
            inside += value
    return " or ".join(sorted(found, reverse=True)) or "a list"


def by_path(value: Any, path: str = "") -> dict[str, np.ndarray]:
    """Return a dict from paths, such as ``[0][1]``, to all arrays of nested lists and tuples."""
    if isinstance(value, np.ndarray):
        return {path: value}
    parts = enumerate(value) if isinstance(value, (list, tuple)) else ()
    return {key: array for i, part in parts for key, array in by_path(part, f"{path}[{i}]").items()}


def at_path(value: Any, path: str) -> np.ndarray | None:
    """Return the array at a path such as ``[0][1]``; None if there is no array at this path."""
    try:
        for index in path.strip("[]").split("][") if path else ():
            value = value[int(index)]
    except (LookupError, TypeError, ValueError):
        return None
    return value if isinstance(value, np.ndarray) else None
