"""What a check found wrong: the parts of its message, and the evidence behind them. Every report is
made of this.

Plain data that survives JSON. Much of it is a submission's own text: what is evidence here is cut
to the bounds below, and shows no control characters. The message's own text is cut where it is
shown.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from grader.diagnosis.spans import Span

SAID, RANKS, VALUES, LIKELY = "said", "ranks", "values", "likely"  # what a line of a message tells

MAX_CELLS = 8  # around the first difference
MAX_DETAILS = 8  # lines about one rank
MAX_STEPS = 12  # different operations of one rank
MAX_SPANS = 240  # of all ranks
MAX_PRINTED = 12  # lines of one rank, the last ones
LONGEST = 300  # characters of a piece of evidence


def printable(text: str) -> str:
    """Remove control characters, marks that turn the text's direction, and halves of characters."""
    return "".join(
        c if c in "\n\t" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def short(text: str, most: int = LONGEST) -> str:
    """One piece of evidence, fit to be shown."""
    return printable(text[:most]) + (" […]" if len(text) > most else "")


@dataclass(frozen=True)
class Line:
    """A paragraph of a message.

    Where ``RANKS`` and ``VALUES`` are told, a page has tables of the same.
    """

    text: str
    kind: str = SAID


@dataclass(frozen=True)
class Cell:
    """One entry of a tensor, as text: the place, and what was expected and came there."""

    place: str
    expected: str
    got: str
    wrong: bool


@dataclass(frozen=True)
class Compared:
    """Expected and got side by side: their types, and the entries around the first that differs."""

    path: str  # in nested lists; "" for the result itself
    expected: str
    got: str
    wrong: str = ""  # how many entries are
    cells: tuple[Cell, ...] = ()
    before: int = 0  # entries that are not shown
    after: int = 0


@dataclass(frozen=True)
class Step:
    """Operations of one rank that are alike, in a line of the student's."""

    what: str
    times: int
    bytes: int  # of all of them


@dataclass(frozen=True)
class RankSummary:
    """What became of one rank in the call: what it returned, raised, or where it stands; what it
    communicated and printed.
    """

    rank: int
    fate: str
    details: tuple[str, ...] = ()
    compared: Compared | None = None
    steps: tuple[Step, ...] = ()
    more_steps: int = 0
    sends: int = 0  # bytes at least, by the best algorithms
    printed: tuple[str, ...] = ()
    printed_before: int = 0  # lines


@dataclass(frozen=True)
class Finding:
    """What a check found.

    ``str`` of it is the message; ``call`` says which call of which function it is about.
    """

    headline: str = ""
    lines: tuple[Line, ...] = ()
    call: str = ""
    ranks: tuple[RankSummary, ...] = ()
    spans: tuple[Span, ...] = ()  # who did what when

    def __str__(self) -> str:
        parts = [
            *([self.call] if self.call else []),
            self.headline,
            *(line.text for line in self.lines),
        ]
        return "\n".join([*parts, *self._printed()])

    def _printed(self) -> list[str]:
        blocks = []
        for one in self.ranks:
            if one.printed:
                left_out = (
                    [f"        … {one.printed_before} lines before"] if one.printed_before else []
                )
                blocks += [
                    f"    rank {one.rank}:",
                    *left_out,
                    *(f"        {line}" for line in one.printed),
                ]
        return ["Printed:", *blocks] if blocks else []

    def of_kind(self, kind: str) -> list[str]:
        return [line.text for line in self.lines if line.kind == kind]

    def written(self, change: Callable[[str], str]) -> "Finding":
        """The same with every text in it changed in this way."""

        def deep(part: Any) -> Any:
            if isinstance(part, str):
                return change(part)
            if isinstance(part, tuple):
                return tuple(map(deep, part))
            if is_dataclass(part) and not isinstance(part, type):
                return replace(
                    part, **{field.name: deep(getattr(part, field.name)) for field in fields(part)}
                )
            return part

        return deep(self)

    @classmethod
    def read(cls, found: dict) -> "Finding":
        """From ``dataclasses.asdict``, perhaps by way of JSON, which knows no tuples."""

        def compared(of: dict | None) -> Compared | None:
            return (
                Compared(**of | {"cells": tuple(Cell(**cell) for cell in of["cells"])})
                if of
                else None
            )

        def of_rank(of: dict) -> RankSummary:
            parts = {
                "compared": compared(of["compared"]),
                "steps": tuple(Step(**step) for step in of["steps"]),
            }
            return RankSummary(
                **of | parts | {name: tuple(of[name]) for name in ("details", "printed")}
            )

        lines = tuple(Line(**line) for line in found["lines"])
        spans = tuple(Span(**span | {"awaits": tuple(span["awaits"])}) for span in found["spans"])
        return cls(
            found["headline"], lines, found["call"], tuple(map(of_rank, found["ranks"])), spans
        )
