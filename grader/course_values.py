"""Checks and converts the values of ``course.toml``.

A *reader* is a function that accepts a value of the parsed file. It returns the value that a
``Course`` stores, or raises ValueError. The error's message is the end of a sentence, such as "it
must be true or false, without quotes".
"""

import difflib
import json
import math
import re
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from grader.assignment import PARTS

Reader = Callable[[Any], Any]


def number(low: float, high: float, *, above: bool = False, instead: str = "") -> Reader:
    """Return a reader for numbers from ``low`` to ``high``.

    If ``above`` is True, ``low`` itself is not allowed. If ``instead`` is given, the reader also
    accepts this word, and returns infinity for it.
    """

    def read(value: Any) -> float:
        if instead and value == instead:
            return math.inf
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        # NaN is in no range.
        if not is_number or not low <= value <= high or (above and value == low):
            range_ = f"above {low:g} and at most {high:g}" if above else f"from {low:g} to {high:g}"
            raise ValueError(f"it must be a number {range_}{instead and f', or {shown(instead)}'}")
        return float(value)

    return read


def whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 10**6:
        raise ValueError("it must be a whole number from 0 to 999999")
    return value


def yes(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("it must be true or false, without quotes")
    return value


def one_of(choices: tuple[str, ...]) -> Reader:
    def read(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"it must be one of {', '.join(map(shown, choices))}")
        return value

    return read


def line(value: Any) -> str:
    if not (isinstance(value, str) and value.isprintable() and len(value) <= 100):
        raise ValueError("it must be a text in quotes, on one line, of at most 100 characters")
    return value.strip()


def title(value: Any) -> str:
    title = line(value)
    if not title:
        raise ValueError("it must not be empty")
    return title


def matching(pattern: str, what: str) -> Reader:
    """Return a reader that accepts only texts that match ``pattern``.

    The script setup.sh puts these texts into its commands. So other characters must be refused.
    """

    def read(value: Any) -> str:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise ValueError(f'it must be {what}, or ""')
        return value

    return read


def time(value: Any) -> datetime | None:
    if value == "":
        return None
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.replace("Z", "+00:00"))
        except ValueError:
            pass
    if not isinstance(value, datetime) or value.utcoffset() is None:
        raise ValueError(
            'it must be a time with its time zone, like 2027-03-01T23:59:00-08:00, or ""'
        )
    return value


def parts(value: Any) -> tuple[str, ...]:
    names = _list_of(value, PARTS, "part")
    if not names:
        raise ValueError("it must list at least one part")
    return tuple(name for name in PARTS if name in names)


def problems(value: Any) -> tuple[str, ...]:
    known = [number for part in PARTS.values() for number in part.problems]
    chosen = _list_of(value, known, "problem")
    return tuple(number for number in known if number in chosen)


def _list_of(value: Any, known: Iterable[str], what: str) -> list[str]:
    known = list(known)
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise ValueError(f'it must be a list of {what}s in quotes, like ["{known[0]}"]')
    for one in value:
        if one not in known:
            raise ValueError(f"there is no {what} {shown(one)}.{nearest(one, known)}")
        if value.count(one) > 1:
            raise ValueError(f"{shown(one)} is listed twice")
    return value


# ——— words


def shown(value: Any) -> str:
    """Return a value as it is written in the file. Cut it after 60 characters."""
    if isinstance(value, (bool, str, list)):
        text = json.dumps(value, ensure_ascii=False, default=str)
    else:
        text = str(value)
    return text if len(text) <= 60 else f"{text[:60]}…"


def sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if text.endswith((".", "?")) else f"{text}."


def nearest(word: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(word.lower(), list(known), n=1)
    return f" Did you mean {near[0]}?" if near else ""
