"""Builds the tables of a page about a course, and formats their numbers.

On a narrow screen each row becomes a block. There, every value follows the name of its column.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grader.reports.layout import scrolling
from grader.reports.markup import Html, tag

# The columns with words or drawings. All other columns have numbers.
WORDS = ("Check", "Email", "Handed in by", "Name", "Problem", "Shares", "Status", "Submission")


@dataclass(frozen=True, init=False)
class Row:
    """One row of a table: its head, then its cells."""

    head: object
    cells: tuple[object, ...]
    marked: bool

    def __init__(self, head: object, *cells: object, marked: bool = False) -> None:
        for name, value in (("head", head), ("cells", cells), ("marked", marked)):
            object.__setattr__(self, name, value)


def table(caption: str, names: Sequence[str], rows: Sequence[Row]) -> Html:
    heads = (tag("th", name, scope="col", class_=_look(name)) for name in names)
    body = (
        tag("tr", tag("th", row.head, scope="row"),
            *(tag("td", cell, class_=_look(name), data_name=name)
              for name, cell in zip(names[1:], row.cells)),
            class_="marked" if row.marked else None)
        for row in rows
    )  # fmt: skip
    parts = tag("caption", caption), tag("thead", tag("tr", *heads)), tag("tbody", *body)
    return scrolling(tag("table", *parts, class_="rows"), caption)


def facts(found: Mapping[str, object]) -> Html:
    """Return HTML that shows numbers side by side, each below its name."""
    pairs = (tag("div", tag("dt", name), tag("dd", value)) for name, value in found.items())
    return tag("dl", *pairs, class_="facts")


def _look(name: str) -> str | None:
    return None if name in WORDS else "number"


def percent(share: float) -> str:
    """Return a share as text. Only exactly 1 gives 100 %, and only exactly 0 gives 0 %."""
    if 0.995 <= share < 1:
        return "> 99 %"
    return "< 1 %" if 0 < share < 0.005 else f"{share:.0%}".replace("%", " %")


def signed(number: float | None) -> str:
    """Return a number from −1 to 1 as text, or a dash for None."""
    return "–" if number is None else f"{number:+.2f}".replace("-", "−")


def three_digits(number: float) -> str:
    """Return a number as text: with three digits, or from 1000 on, as a whole number."""
    return f"{number:.0f}" if number >= 999.5 else f"{number:.3g}"


def as_bytes(count: float) -> str:
    unit = "GiB" if count >= 2**30 else "MiB"
    return f"{three_digits(count / (2**30 if unit == 'GiB' else 2**20))} {unit}"
