"""Reads ``course.toml``: which parts of the assignment a course uses, and how they are graded.

``course()`` returns the course that is graded. It reads one of these files:

- the file that the environment variable ``LOCKSTEP_COURSE`` names, if this variable is set. The
  grader's own tests name an empty file. So they use the default of every key, even if an instructor
  has edited course.toml;
- otherwise ``course.json``, if it exists. This file is packed into a student's copy and into
  Gradescope's zip;
- otherwise ``course.toml``, which an instructor edits.

A key that is left out has its default. A file with a mistake is refused as a whole: nothing is
graded or packed until the mistake is corrected.
"""

import json
import math
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from grader import course_values as values
from grader.assignment import PARTS, POINTS, Part
from grader.course_values import nearest, shown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FILE = "LOCKSTEP_COURSE"
WRITTEN = Path(__file__).with_name("course.toml")
PACKED = Path(__file__).with_name("course.json")

VISIBILITIES = ("visible", "after_due_date", "after_published", "hidden")
ON_TOP, UP_TO_THE_TOTAL, NOT = "on top", "up to the total", "not"
COUNTS = (ON_TOP, UP_TO_THE_TOTAL, NOT)


class BadCourse(ValueError):
    """Raised if a course file cannot be used.

    The message is a sentence for the instructor. It names the file and the key.
    """


# ——— the file's sections: each field of a class is a key of the section


def _key(default: Any, read: values.Reader) -> Any:
    return field(default=default, metadata={"read": read})


@dataclass(frozen=True)
class About:
    name: str = _key("", values.line)
    assignment: str = _key("Lockstep", values.title)
    parts: tuple[str, ...] = _key(tuple(PARTS), values.parts)


@dataclass(frozen=True)
class ExtraCredit:
    problems: tuple[str, ...] = _key((), values.problems)
    counts: str = _key(ON_TOP, values.one_of(COUNTS))


@dataclass(frozen=True)
class Late:
    """The rules for late submissions. ``gradescope/late.py`` applies them."""

    due: datetime | None = _key(None, values.time)
    percent_per_day: float = _key(0.0, values.number(0, 100))
    grace_minutes: float = _key(10.0, values.number(0, 1440))
    free_days: float = _key(0.0, values.number(0, 366))
    most_percent: float = _key(100.0, values.number(0, 100))
    cut_off_days: float = _key(math.inf, values.number(0, 366, instead="never"))


@dataclass(frozen=True)
class Limit:
    """The limit on graded submissions: at most ``submissions`` of a student in ``hours`` hours.

    If ``submissions`` is 0, there is no limit.
    """

    submissions: int = _key(0, values.whole)
    hours: float = _key(24.0, values.number(0, 8784, above=True))  # at most 366 days


@dataclass(frozen=True)
class Gradescope:
    hidden_checks: str = _key("after_published", values.one_of(VISIBILITIES))
    # the platform's longest time limit is 40 minutes
    seconds: float = _key(540.0, values.number(0, 2400, above=True))
    confined: bool = _key(True, values.yes)
    leaderboard: bool = _key(False, values.yes)


@dataclass(frozen=True)
class Install:
    """The Python and torch that setup.sh installs in Gradescope's container."""

    python: str = _key(
        "", values.matching(r"[\w./+-]*", "the name or path of a Python, like python3.12")
    )
    torch: str = _key("", values.matching(r"(\d[\w.+]*)?", "a version of torch, like 2.9.1"))
    torch_index: str = _key(
        "https://download.pytorch.org/whl/cpu",
        values.matching(r"((https?|file)://[\w./:@%+~-]+)?", "the URL of an index of packages"),
    )


@dataclass(frozen=True)
class Course:
    """The contents of a course file."""

    course: About = About()
    points: Mapping[str, float] = field(default_factory=dict)  # by problem, if not the default
    extra_credit: ExtraCredit = ExtraCredit()
    late: Late = Late()
    limit: Limit = Limit()
    gradescope: Gradescope = Gradescope()
    install: Install = Install()

    @property
    def title(self) -> str:
        """Return the names of the course and of the assignment."""
        return ": ".join(name for name in (self.course.name, self.course.assignment) if name)

    @property
    def parts(self) -> dict[str, Part]:
        """Return the parts that the course uses, in the order of their numbers."""
        return {name: PARTS[name] for name in self.course.parts}

    @property
    def problems(self) -> dict[str, str]:
        """Return the number and title of each problem that the course uses."""
        return {n: title for part in self.parts.values() for n, title in part.problems.items()}

    @property
    def extra(self) -> frozenset[str]:
        """Return the problems that are extra credit, including all problems of extra parts."""
        of_parts = (n for part in self.parts.values() if part.is_extra for n in part.problems)
        return frozenset([*self.extra_credit.problems, *of_parts])

    def points_of(self, numbers: Iterable[str]) -> float:
        """Return the sum of the points of these problems."""
        return sum(self.points.get(number, POINTS[number]) for number in numbers)

    @property
    def last_part(self) -> str:
        """Return the name of the last part that is not extra credit.

        If all parts are extra credit, return the name of the last part.
        """
        base = [name for name, part in self.parts.items() if not part.is_extra]
        return (base or list(self.parts))[-1]

    @property
    def files(self) -> list[str]:
        """Return the files that a student hands in."""
        return [f"{name}.py" for name in self.course.parts]


SECTIONS = {"course": About, "extra_credit": ExtraCredit, "late": Late, "limit": Limit}
SECTIONS |= {"gradescope": Gradescope, "install": Install}


# ——— reading


def course() -> Course:
    """Return the course that is graded. Raise BadCourse if its file cannot be used.

    The module's docstring says which file is read.
    """
    named = os.environ.get(FILE)
    return _read_once(Path(named) if named else PACKED if PACKED.exists() else WRITTEN)


def read(path: Path) -> Course:
    """Return the course that a file describes. Raise BadCourse if the file cannot be used."""
    try:
        # Windows editors put a byte order mark in front of the text.
        text = path.read_bytes().decode("utf-8-sig")
        document = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise BadCourse(f"{path} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise BadCourse(f"{path.name} cannot be read: {values.sentence(error)}") from None
    try:
        return of(document)
    except ValueError as error:
        raise BadCourse(f"{path.name}: {values.sentence(error)}") from None


_read_once = cache(read)


def of(document: Any) -> Course:
    """Return the course that a parsed TOML or JSON document describes.

    Raise ValueError with a sentence if the document has a mistake.
    """
    known = [*SECTIONS, "points"]
    if not isinstance(document, dict):  # a TOML document is always a dict
        raise ValueError("it must consist of sections, like [course].")
    for name, entries in document.items():
        if name not in known:
            raise ValueError(f"{shown(name)} is no section.{_home(name) or nearest(name, known)}")
        if not isinstance(entries, dict):
            raise ValueError(f"{name} must be a section: write [{name}] on a line of its own.")
    sections = {name: _section(name, document.get(name, {})) for name in SECTIONS}
    found = Course(**sections, points=_points(document.get("points", {})))
    _check(found)
    return found


def _section(name: str, entries: dict[str, Any]) -> Any:
    readers = {one.name: one.metadata["read"] for one in fields(SECTIONS[name])}
    values = {}
    for key, value in entries.items():
        if key not in readers:
            near = nearest(key, readers) or _home(key)
            raise ValueError(f"[{name}] has no {shown(key)}.{near}")
        try:
            values[key] = readers[key](value)
        except ValueError as error:
            raise ValueError(f"[{name}] {key} = {shown(value)} is not possible: {error}") from None
    return SECTIONS[name](**values)


def _points(entries: dict[str, Any]) -> dict[str, float]:
    known = [number for part in PARTS.values() for number in part.problems]
    found, number_of_points = {}, values.number(0, 1000, above=True)
    for number, value in entries.items():
        if number not in known:
            hint = nearest(number, known)
            if isinstance(value, dict):  # TOML reads 1.7 without quotes as a key 7 in a table 1
                line = f'"{number}.{next(iter(value), 1)}" = 8'
                hint = f" Write the number of a problem in quotes: {line}."
            raise ValueError(f"[points] there is no problem {shown(number)}.{hint}")
        try:
            found[number] = number_of_points(value)
        except ValueError as error:
            raise ValueError(
                f'[points] "{number}" = {shown(value)} is not possible: {error}'
            ) from None
    return found


def _check(found: Course) -> None:
    """Raise ValueError if the sections contradict each other."""
    for section, numbers in (
        ("points", found.points),
        ("extra_credit", found.extra_credit.problems),
    ):
        for number in numbers:
            if number not in found.problems:
                raise ValueError(
                    f"[{section}] names problem {number}, but the course does not take its part:"
                    f" [course] parts are {', '.join(found.parts)}."
                )
    if found.extra >= set(found.problems):
        raise ValueError(
            "[extra_credit] every problem is extra credit, and then the total is 0. At least one"
            " problem of the course must not be extra credit."
        )


def packed(found: Course, sections: Iterable[str]) -> str:
    """Return these sections of a course as the text of a ``course.json``."""
    document: dict[str, Any] = {}
    for name in sections:
        section = getattr(found, name)
        entries = dict(section) if name == "points" else asdict(section)
        document[name] = {key: _as_json(value) for key, value in entries.items()}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _as_json(value: Any) -> Any:
    """Return a value in the form that its reader accepts."""
    if isinstance(value, datetime):
        return value.isoformat()
    return "" if value is None else "never" if value == math.inf else value


def _home(key: str) -> str:
    homes = [name for name, section in SECTIONS.items() if key in vars(section)]
    return f" It belongs to [{homes[0]}]." if homes else ""
