"""Writes the text that Autolab reads from an autograder's standard output.

The last line is a JSON object, the autoresult. Its ``scores`` maps each problem of the assessment
on Autolab to points, and its ``scoreboard`` lists the values of the scoreboard's columns (Autolab,
"Guide for Lab Authors" and "Scoreboards"). The line before the autoresult can be another JSON
object. Its ``_presentation`` is ``semantic``, and its ``stages`` lists the names of stages. Each
stage maps the names of tests to ``passed`` and ``hint`` (Autolab, "Formatted Feedback"). Students
see all earlier lines unchanged.

Before Autolab parses the autoresult, it puts quotes around each word in front of a colon. So no
name in the autoresult may contain a colon.
"""

import json
from itertools import groupby

from grader.assignment import PARTS
from grader.check.record import PASSED
from grader.platforms.shown import ShownEntry, every_check, fitted, for_students, notes
from grader.reports.results_json import points_of

# Tango keeps 1,000 KiB of all that a job prints (MAX_OUTPUT_FILE_SIZE).
MAX_OUTPUT_BYTES = 256 << 10
EXTRA_CREDIT = "Extra credit"


def text(document: dict) -> str:
    """Return the whole text for Autolab. The autoresult is its last line."""
    return fitted(document, _text, MAX_OUTPUT_BYTES)


def _text(document: dict) -> str:
    entries = for_students(document)
    return (
        "\n".join([_readable(document, entries), _feedback(entries), autoresult(document)]) + "\n"
    )


def autoresult(document: dict) -> str:
    """Return the autoresult. Its scoreboard lists the scores in their order, and then the total.

    There is a score for each part. Autolab adds up the scores. So if extra credit does not count on
    top, there is a separate score for it: the points that extra credit adds to the total. Then a
    part that is only extra credit has no score.
    """
    total, is_on_top = points_of(document)[0], "score" not in document
    counted = [t for t in document["tests"] if is_on_top or not t["extra_data"].get("extra_credit")]
    parts = _by_part(every_check(document | {"tests": counted}))
    scores = {PARTS[part].title: sum(e.score for e in entries) for part, entries in parts.items()}
    if not is_on_top:
        scores[EXTRA_CREDIT] = round(total - sum(scores.values()), 6)
    return json.dumps({"scores": scores, "scoreboard": [*scores.values(), total]})


def _feedback(entries: list[ShownEntry]) -> str:
    stages: dict[str, dict] = {
        PARTS[part].title: {f"{e.number} {e.name}": _test(e) for e in of_part}
        for part, of_part in _by_part(entries).items()
    }
    return json.dumps({"_presentation": "semantic", "stages": [*stages], **stages})


def _test(entry: ShownEntry) -> dict:
    passed = entry.status == PASSED
    return {"passed": passed} if passed else {"passed": passed, "hint": entry.headline}


def _by_part(entries: list[ShownEntry]) -> dict[str, list[ShownEntry]]:
    return {part: list(of_part) for part, of_part in groupby(entries, key=lambda e: e.part)}


def _readable(document: dict, entries: list[ShownEntry]) -> str:
    lines = [notes(document)] if document["output"] else []
    for entry in entries:
        lines.append(f"{entry.number} {entry.name}: {entry.status}, {entry.points}")
        if entry.status != PASSED:
            lines += [f"    {line}" for line in entry.message.splitlines()]
    return "\n".join(lines)
