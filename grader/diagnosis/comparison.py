"""Compares values strictly: kind, then shape, then dtype, then finiteness, then entries.

The module compares plain arrays, and never broadcasts them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from grader.diagnosis.finding import MAX_CELLS, MAX_VALUES, Cell, Compared, short
from grader.world.arrays import Unsendable

AHEAD = 2  # the shown entries begin this many entries before the first wrong entry


@dataclass(frozen=True)
class Tolerance:
    """The error that an entry may have, and the reason why this error is allowed.

    The error may be at most ``relative`` × m. Usually m is the largest magnitude in the expected
    tensor. But m is never less than ``small`` times the largest magnitude in all expected tensors
    that are compared together. ``small`` is for tensors whose terms cancel when they are summed.
    The entries of such a tensor are small, but have the rounding errors of large terms.
    """

    relative: float
    reason: str
    small: float = 0.0


EXACT = Tolerance(0.0, "these numbers have no rounding errors: every entry must be equal")


def rounding(dtype: Any) -> Tolerance:
    """Return the tolerance for the rounding errors of matrix products and long sums.

    The expected values are computed in float64, and terms may be summed in any order. A sum of K
    products has an error of about √K units in the last place. A few layers increase this error. The
    tolerance is 2000 units (2.4e−4 in float32). This is well above the error, and far below the
    effect of any real mistake.
    """
    unit = float(np.finfo(dtype).eps)
    return Tolerance(2000 * unit, f"rounding in {np.dtype(dtype).name}, summed in any order")


@dataclass(frozen=True)
class Difference:
    """The first difference between a value and the expected value.

    ``sentence`` states the difference, and ``side_by_side`` shows it in a report. If the shapes
    differ, or if finite entries differ, ``got`` and ``expected`` are the arrays, for the code that
    looks for the cause. Otherwise ``got`` and ``expected`` are None. ``same_kind`` is False if the
    value is of another kind or dtype. ``is_none`` is True if the value is None and should not be.
    """

    sentence: str
    side_by_side: Compared
    got: np.ndarray | None = None
    expected: np.ndarray | None = None
    path: str = ""
    values: str = ""  # the first entries of both arrays, in two lines
    same_kind: bool = True
    is_none: bool = False

    @property
    def text(self) -> str:
        return f"{self.sentence}\n{self.values}" if self.values else self.sentence


def describe(value: Any) -> str:
    """Return a description of a value, without the entries of a tensor or a list."""
    if isinstance(value, np.ndarray):
        return f"a tensor of shape {value.shape}, {value.dtype}"
    if isinstance(value, Unsendable):
        return value.description
    if isinstance(value, (list, tuple)):
        return f"a {type(value).__name__} of length {len(value)}"
    if isinstance(value, dict):  # from a driver
        return "a result"
    return "None" if value is None else f"{type(value).__name__} {value!r}"[:80]


def difference(
    got: Any, expected: Any, tolerance: Tolerance, path: str = "", least: float | None = None
) -> Difference | None:
    """Return the first difference between ``got`` and ``expected``; None if there is no difference.

    Lists and tuples are compared entry by entry. A list and a tuple of the same entries count as
    equal. ``path`` names the place of the values in nested lists. If the largest magnitude in an
    expected tensor is less than ``least``, the tolerance is relative to ``least`` instead. If
    ``least`` is None, it is computed from ``tolerance.small``.
    """
    if least is None:
        least = tolerance.small * _largest(expected) if tolerance.small else 0.0
    name = f"element {path}: " if path else ""
    if isinstance(expected, (list, tuple)):
        if not isinstance(got, (list, tuple)) or len(got) != len(expected):
            return _other_kind(got, expected, path, name)
        parts = (
            (g, e, tolerance, f"{path}[{i}]", least) for i, (g, e) in enumerate(zip(got, expected))
        )
        return next((found for part in parts if (found := difference(*part))), None)
    if not isinstance(expected, np.ndarray):
        same = type(got) is type(expected) and got == expected
        return None if same else _other_kind(got, expected, path, name)
    if not isinstance(got, np.ndarray):
        return _other_kind(got, expected, path, name)
    if got.shape != expected.shape:
        sentence = f"{name}expected shape {expected.shape}, got {got.shape}"
        return Difference(sentence, _side_by_side(got, expected, path), got, expected, path)
    if got.dtype != expected.dtype:
        sentence = f"{name}expected dtype {expected.dtype}, got {got.dtype}"
        side_by_side = _side_by_side(got, expected, path)
        return Difference(sentence, side_by_side, path=path, same_kind=False)
    return _values(got, expected, tolerance, path, name, least)


def _largest(expected: Any) -> float:
    """Return the largest magnitude among the entries of all tensors; 0 if there are no entries."""
    if isinstance(expected, (list, tuple)):
        return max(map(_largest, expected), default=0.0)
    return (
        float(np.abs(expected.astype(np.float64)).max(initial=0.0))
        if isinstance(expected, np.ndarray)
        else 0.0
    )


def _other_kind(got: Any, expected: Any, path: str, name: str) -> Difference:
    sentence = f"{name}expected {describe(expected)}, got {describe(got)}"
    # Numbers that differ, and lists of different lengths, are of the same kind.
    both_lists = isinstance(got, (list, tuple)) and isinstance(expected, (list, tuple))
    return Difference(
        sentence,
        _side_by_side(got, expected, path),
        path=path,
        same_kind=both_lists or type(got) is type(expected),
        is_none=got is None,
    )


def _values(
    got: np.ndarray, expected: np.ndarray, tolerance: Tolerance, path: str, name: str, least: float
) -> Difference | None:
    finite = np.isfinite(got)
    if not finite.all():
        at = tuple(map(int, np.argwhere(~finite)[0]))
        count = f"{(~finite).sum()} of {got.size} entries are not finite"
        sentence = f"{name}{got[at]} at {list(at)}; {count}" if at else f"{name}got {got[at]}"
        return Difference(sentence, _side_by_side(got, expected, path, count, ~finite), path=path)
    exact, ours = expected.astype(np.float64), got.astype(np.float64)
    if tolerance.relative == 0:
        wrong = got != expected
    else:
        scale = np.abs(exact).max(initial=least)
        wrong = ~(np.abs(ours - exact) <= tolerance.relative * scale)  # also true for NaN
    if not wrong.any():
        return None
    at = tuple(map(int, np.argwhere(wrong)[0]))
    wanted, found = apart(expected[at], got[at])
    count = f"{wrong.sum()} of {got.size} entries differ"
    if got.ndim == 0:
        sentence = f"{name}expected {wanted}, got {found}"
    else:
        where = f"element {path} first differs at its entry" if path else "first differs at"
        sentence = f"{where} {list(at)}: expected {wanted}, got {found}; {count}"
    values = ""
    if got.size > 1:
        # Begin with the first entry if this shows the first wrong entry. Otherwise begin later.
        first = int(wrong.argmax())
        begin = 0 if first < MAX_VALUES else min(first - AHEAD, got.size - MAX_VALUES)
        shown = slice(begin, begin + MAX_VALUES)
        wanted, found = apart(expected.ravel()[shown], got.ravel()[shown])
        before = "[…, " if begin else "["
        more = ", …]" if got.size > begin + MAX_VALUES else "]"
        values = f"        expected {before}{wanted}{more}\n        got      {before}{found}{more}"
    return Difference(
        sentence, _side_by_side(got, expected, path, count, wrong), got, expected, path, values
    )


def _side_by_side(
    got: Any,
    expected: Any,
    path: str,
    count: str = "",
    wrong: np.ndarray | None = None,
    ahead: int = AHEAD,
) -> Compared:
    """Return both values in the form that the report shows.

    ``wrong`` is a mask of the wrong entries, if both values are tensors of the same shape. The
    result then also contains at most ``MAX_CELLS`` entries. They begin ``ahead`` entries before the
    first wrong entry, or earlier if the first wrong entry is near the end of the tensor.
    """
    what = short(describe(expected)), short(describe(got))
    if wrong is None:
        return Compared(path, *what)
    first = max(0, min(int(wrong.argmax()) - ahead, wrong.size - MAX_CELLS))
    cells = []
    for i in range(first, min(first + MAX_CELLS, wrong.size)):
        at = tuple(map(int, np.unravel_index(i, wrong.shape)))
        cells.append(
            Cell(str(list(at)) if at else "", *apart(expected[at], got[at]), bool(wrong[at]))
        )
    return Compared(path, *what, count, tuple(cells), first, wrong.size - first - len(cells))


def apart(expected: Any, got: Any) -> tuple[str, str]:
    """Return both values as text, with the fewest digits (6, 10 or all) that show a difference."""
    for digits in (6, 10, None):
        wanted, found = (
            ", ".join(number(v, digits) for v in np.ravel(values)) for values in (expected, got)
        )
        if wanted != found:
            break
    return wanted, found


def number(value: Any, digits: int | None = None) -> str:
    """Return one entry as text, with ``digits`` significant digits.

    If ``digits`` is None, use the fewest digits that distinguish the entry from all other numbers
    of its dtype.
    """
    if digits is None or not np.issubdtype(type(value), np.floating):
        return str(value).removesuffix(".0")
    return f"{value:.{digits}g}"
