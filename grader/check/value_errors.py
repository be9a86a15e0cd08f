"""Judges the text of a ValueError that student code raised."""

import re
from collections.abc import Sequence

from grader.diagnosis.finding import Line
from grader.diagnosis.rank_summaries import trace
from grader.world.report import Raised

NUMBER = re.compile(r"[0-9]+")
# A ValueError's message may contain at most this many different numbers. A message that names every
# number does not say which number is wrong.
MAX_NUMBERS = 20


def objection(error: Raised, mentioning: Sequence[str]) -> tuple[str, tuple[Line, ...]] | None:
    """Return an objection to the text of a ValueError, with lines for the message.

    The text must contain all words of ``mentioning``, and at most ``MAX_NUMBERS`` different
    numbers. Return None if nothing is wrong.
    """
    if lacking := [word for word in mentioning if not mentions(error.text, word)]:
        said = f"does not mention {', nor '.join(lacking)}: “{error.text[:300]}”"
        return said, _other_origin(error)
    if (names := len(set(NUMBER.findall(error.text)))) > MAX_NUMBERS:
        return f"names {names} different numbers: name only those that are wrong.", ()
    return None


def _other_origin(error: Raised) -> tuple[Line, ...]:
    """Return two lines for the message if no ``raise`` statement of the student raised the error.

    The first line shows the student's line at which the error occurred. For example, this line may
    be ``a, b = x.shape``, or a call. Return () if this line has a ``raise`` statement, or is not
    known.
    """
    if not error.lines or re.search(r"\braise\b", error.lines[-1]["source"]):
        return ()
    return (
        *(Line(f"    {line}") for line in trace(error.lines[-1:])),
        Line(
            "No raise statement in your file raised this ValueError. It came from this line itself,"
            " or from a function that this line calls. Check the arguments at the beginning of your"
            " function, and raise a ValueError of your own."
        ),
    )


def mentions(text: str, word: str) -> bool:
    """Return whether a text contains a word. A number must not be a part of a longer number."""
    if not word.lstrip("-").isdecimal():
        return word in text
    return re.search(rf"(?<![0-9]){re.escape(word)}(?![0-9])", text) is not None
