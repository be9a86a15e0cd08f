"""Defines a finding: one mistake that a check has found, with its message and the evidence.

Every report is made from findings. A finding is plain data, which can be written as JSON and read
back. Much text in a finding comes from a submission. So the evidence is cut to the limits below,
and the control characters in it are replaced. The message is stored in full, and cut only when a
report shows it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from grader.diagnosis.spans import Span

# The kinds of a message's lines. RANKS: what ranks did. VALUES: expected and actual values.
# LIKELY: the likely cause. SAID: anything else.
SAID, RANKS, VALUES, LIKELY = "said", "ranks", "values", "likely"
LIKELY_PREFIX = "Likely: "  # begins a line about the likely cause

MAX_VALUES = 8  # entries of a tensor in the message
MAX_CELLS = 8  # entries of a tensor around the first difference, in the page's table
MAX_DETAILS = 8  # lines about one rank
MAX_STEPS_SHOWN = 12  # different operations of one rank
MAX_SPANS_SHOWN = 240  # spans of all ranks together
MAX_PRINTED = 12  # the last lines that one rank printed
MAX_EVIDENCE_LENGTH = 300  # characters of a piece of evidence


def printable(text: str) -> str:
    """Return the text with a replacement character for each character that is not printable.

    Characters that are not printable are, for example, control characters, characters that reverse
    the text's direction, and halves of surrogate pairs. Newlines and tabs stay.
    """
    return "".join(
        c if c in "\n\t" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text
    )


def short(text: str, most: int = MAX_EVIDENCE_LENGTH) -> str:
    """Return a piece of evidence as printable text, cut after ``most`` characters."""
    return printable(text[:most]) + (" […]" if len(text) > most else "")


@dataclass(frozen=True)
class Line:
    """One paragraph of a message. ``text`` may contain line breaks.

    The HTML report shows tables in place of the paragraphs of the kinds ``RANKS`` and ``VALUES``.
    """

    text: str
    kind: str = SAID


def likely_line(*sentence: str) -> Line:
    """Return the ``Line`` that states the likely cause.

    Each argument is printed on a line of its own. If no punctuation mark ends the last sentence,
    the function adds a full stop.
    """
    text = "\n        ".join([LIKELY_PREFIX + sentence[0], *sentence[1:]])
    has_end = text.rstrip(")”").endswith((".", "?", "!", "…"))
    return Line(text if has_end else f"{text}.", LIKELY)


@dataclass(frozen=True)
class Diagnosis:
    """The explanation of a failed call: a headline, and the lines below it."""

    headline: str
    lines: Sequence[Line] = ()
    implemented: bool = True

    def __str__(self) -> str:
        return "\n".join([self.headline, *(line.text for line in self.lines)])


@dataclass(frozen=True)
class Cell:
    """One entry of a tensor as text: its index, the expected value and the rank's value."""

    place: str
    expected: str
    got: str
    wrong: bool


@dataclass(frozen=True)
class Compared:
    """An expected value and the value of a rank, as text, with the entries near a difference."""

    path: str  # the place of both values in nested lists; "" for the result itself
    expected: str
    got: str
    wrong: str = ""  # how many entries are wrong, in words
    cells: tuple[Cell, ...] = ()
    before: int = 0  # how many entries before the cells are not shown
    after: int = 0  # how many entries after the cells are not shown


@dataclass(frozen=True)
class Step:
    """Equal operations of one rank, shown as one row in the list of its operations.

    ``what`` describes one of these operations and the line of student code that issued it.
    ``times`` is their number.
    """

    what: str
    times: int
    bytes: int  # of all these operations together


@dataclass(frozen=True)
class RankSummary:
    """The evidence about one rank in a call: its fate, and what it communicated and printed.

    ``fate`` says what the rank returned or raised, how its process ended, or where in its program
    the rank still is.
    """

    rank: int
    fate: str
    details: tuple[str, ...] = ()
    compared: Compared | None = None
    steps: tuple[Step, ...] = ()
    more_steps: int = 0
    sends: int = 0  # the bytes that the rank sends if each operation uses the best algorithm
    printed: tuple[str, ...] = ()
    printed_before: int = 0  # how many lines before these are not shown


@dataclass(frozen=True)
class Finding:
    """The finding of one check: its message, and the evidence behind it.

    ``str(finding)`` is the message. ``call`` names the function that was called, and distinguishes
    this call from other calls of the same function. ``for_instructor`` is a sentence that is not
    part of the message. Reports for students do not show this sentence.
    """

    headline: str = ""
    lines: tuple[Line, ...] = ()
    call: str = ""
    ranks: tuple[RankSummary, ...] = ()
    spans: tuple[Span, ...] = ()  # what each rank did, and when
    for_instructor: str = ""

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
                count = one.printed_before
                left_out = [f"        … {count} line{'s' * (count > 1)} before"] if count else []
                blocks += [
                    f"    rank {one.rank}:",
                    *left_out,
                    *(f"        {line}" for line in one.printed),
                ]
        return ["Printed:", *blocks] if blocks else []

    def of_kind(self, kind: str) -> list[str]:
        return [line.text for line in self.lines if line.kind == kind]

    def written(self, change: Callable[[str], str]) -> "Finding":
        """Return the same finding with every text in it replaced by ``change(text)``."""

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
        """Return the finding from which ``dataclasses.asdict`` made this dictionary.

        The dictionary may have passed through JSON, which turns tuples into lists.
        """

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
        ranks = tuple(map(of_rank, found["ranks"]))
        told = found["for_instructor"]
        return cls(found["headline"], lines, found["call"], ranks, spans, told)
