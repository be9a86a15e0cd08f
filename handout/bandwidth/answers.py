"""Read what a student's functions return. Given, not graded."""

import contextlib
import math
import sys
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any


def finite(value: Any) -> float | None:
    """Return a student's value as a float, or None if it is not a finite number.

    The files and the picture need floats. A tensor of one entry is a number, too.
    """
    # torch raises RuntimeError for a tensor of several entries.
    with contextlib.suppress(TypeError, ValueError, OverflowError, RuntimeError):
        if math.isfinite(found := float(value)):
            return found
    return None


def short_repr(value: object) -> str:
    return " ".join(repr(value).split())[:200]


def number(value: object, what: str) -> float:
    """Return a student's value as a float. Exit with a message if it is not a finite number."""
    if (found := finite(value)) is None:
        sys.exit(f"{what} is {short_repr(value)}, not a finite number")
    return found


def timing(returned: Any) -> tuple[float, float, float]:
    """Return the median, the shortest and the longest time that ``stopwatch`` returned.

    Exit with a message if ``stopwatch`` did not return a ``Timing`` with finite times.
    """
    try:
        seconds, samples = returned.seconds, list(returned.samples)
    except (AttributeError, TypeError):
        sys.exit(f"stopwatch returned {short_repr(returned)}, not a Timing(seconds, samples)")
    if not samples:
        sys.exit("stopwatch returned a Timing without samples")
    times = [number(sample, "a sample of stopwatch") for sample in samples]
    return number(seconds, "the median of stopwatch"), min(times), max(times)


def rows(
    returned: Any, measured: Mapping[tuple[str, float | None], dict]
) -> Iterator[tuple[Any, dict]]:
    """Yield each row that ``sweep`` returned, with the figures that were measured for this row.

    ``measured`` maps (collective, size) to the measured figures, and grows while ``sweep`` runs.
    Exit with a message at the first value that is not a Row, or that has no measured figures.
    """
    try:
        found = iter(returned)
    except TypeError:
        sys.exit(f"sweep returned {short_repr(returned)}, not the rows of a table")
    for row in found:
        if getattr(row, "_fields", ())[:2] != ("collective", "size"):
            sys.exit(f"sweep made a row {short_repr(row)}, not a Row(collective, size, …)")
        name, size = row.collective, row.size
        if not isinstance(name, str):
            sys.exit(f"sweep made a row whose collective is {short_repr(name)}, not a name")
        if (name, finite(size)) not in measured:
            sys.exit(
                f"sweep made a row of {short_repr(name)} for {short_repr(size)} bytes, but did not"
                " call run for it"
            )
        yield row, measured[name, finite(size)]


def model(
    student: ModuleType, sizes: list[int], seconds: list[float]
) -> tuple[float, float, float] | str:
    """Return α, β and the size of half the peak, or a text that says why there is no fit."""
    try:
        returned = student.fit_latency_bandwidth(sizes, seconds)
    except ValueError as error:
        if len(set(sizes)) < 2:
            return "a fit needs two sizes"
        said = f": {error}"[:300] if str(error) else ""
        return f"fit_latency_bandwidth raised ValueError{said}"
    try:
        alpha, beta = map(finite, returned)
    except (TypeError, ValueError):  # not two values
        alpha = beta = None
    if alpha is None or beta is None or beta <= 0:
        why = "expected two finite numbers, α and β, with β > 0"
        return f"fit_latency_bandwidth returned {short_repr(returned)}, {why}"
    half = student.half_peak_size(alpha, beta)
    # The picture needs ``predict_seconds``. If ``predict_seconds`` is a stub, this call raises
    # NotImplementedError before the picture is begun.
    predicted = student.predict_seconds(alpha, beta, 1)
    for name, value in (("half_peak_size", half), ("predict_seconds", predicted)):
        if finite(value) is None:
            return f"{name} returned {short_repr(value)}, not a finite number"
    return alpha, beta, float(half)
