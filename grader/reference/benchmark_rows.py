"""Reads the rows of a benchmark's table, and describes errors in a row."""

import math
from typing import Any

NO_ROWS = (
    "sweep did not yield rows. It must be a generator that yields each row as soon as its run has"
    " ended. Does it contain a yield?"
)


def as_rows(table: object) -> list[tuple] | None:
    """Return the rows of a table, or None if the table is not a list of tuples."""
    return (
        table if isinstance(table, list) and all(isinstance(row, tuple) for row in table) else None
    )


def row_difference(row: tuple, due: tuple) -> str | None:
    """Return a sentence about the first difference between two rows, or None if they are equal.

    ``due`` is the expected row. The collective's name is compared first, and then the numbers.
    Rounding errors are ignored.
    """
    if len(row) != len(due):
        return f"the row has {len(row)} entries, not {len(due)}"
    for name, got, expected in zip(
        ("collective", "size", "seconds", "algbw", "busbw", "wrong"), row, due
    ):
        if isinstance(expected, str):
            same = type(got) is str and got == expected
        else:
            same = math.isclose(as_float(got), expected, rel_tol=1e-11, abs_tol=1e-12)
        if not same:
            return f"expected {name} {expected}, got {got!r:.80}"
    return None


def as_float(value: Any) -> float:
    """Return the value as a float, or NaN if it is not a number. Every string gives NaN."""
    try:
        return float("nan") if isinstance(value, str) else float(value)
    except (TypeError, ValueError, OverflowError):
        return float("nan")
