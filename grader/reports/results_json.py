"""Writes results.json as a whole, in the format that Gradescope documents."""

import json
from pathlib import Path

from grader.assignment import PARTS
from grader.atomic_write import written_whole
from grader.check.record import PASSED, Record
from grader.course_file import ON_TOP, course
from grader.diagnosis.finding import printable
from grader.reports.summary import Group, counted, summary

MAX_OUTPUT = 20_000  # characters; the platform itself would cut a text of more than 100,000


def as_results(records: list[Record], seconds: float, notes: list[str], extra: dict) -> dict:
    """Return the whole document, as plain JSON.

    The document has a total score only if there is extra credit, and the total is not the sum of
    all points. Otherwise the platform adds up the scores of the tests.
    """
    total = summary(records)
    return {
        **_score(total),
        "execution_time": round(seconds, 3),
        "output": "\n".join(notes),
        "output_format": "text",
        "test_output_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "extra_data": extra | _extra_credit(total),
        "tests": [_test(record) for record in total.records],
    }


def points_of(document: dict) -> tuple[float, float]:
    """Return a submission's total points, and the points that the assignment is worth.

    If only extra credit was graded, as in a task of one part, return the earned and the possible
    points of the extra credit. In this case the course's rule for how extra credit counts cannot be
    applied, because it also needs the points of the assignment.
    """
    tests = document["tests"]
    base = [test for test in tests if not test["extra_data"].get("extra_credit")]
    if not base:
        return sum(test["score"] for test in tests), sum(test["max_score"] for test in tests)
    # The document has a score only if the total is not the sum of all points.
    score = document.get("score", sum(test["score"] for test in tests))
    return score, sum(test["max_score"] for test in base)


def _score(total: Group) -> dict:
    counts = course().extra_credit.counts
    if not total.extra.records or not total.base.records or counts == ON_TOP:
        return {}
    return {"score": counted(total.base.score, total.base.best, total.extra.score, counts)}


def _extra_credit(total: Group) -> dict:
    """Return what results.json says about extra credit, if there is any."""
    if not total.extra.records:
        return {}
    base = {"score": total.base.score, "max_score": total.base.best}
    extra = {"score": total.extra.score, "max_score": total.extra.best}
    counts = course().extra_credit.counts
    return {"base": base, "extra_credit": extra | {"counts": counts}}


def _test(record: Record) -> dict:
    title = PARTS[record.part].problems.get(record.number, "")
    return {
        "number": record.number,
        "name": f"{'Extra credit: ' * record.is_extra}{title} · {record.name}",
        "score": record.score,
        "max_score": record.points,
        "status": "passed" if record.status == PASSED else "failed",
        "output": clean(record.message or "Passed."),
        "output_format": "text",
        "visibility": record.visibility,
        "extra_data": {
            "check": record.id,
            "status": record.status,
            "seconds": round(record.seconds, 3),
            "worlds": record.worlds,
            "fresh_worlds": record.fresh,
            "seconds_in_worlds": round(record.in_worlds, 3),
            "visibility_written": record.visibility_written,
            **({"extra_credit": True} if record.is_extra else {}),
        },
    }


def clean(text: str) -> str:
    """Return a text without its control characters, cut after MAX_OUTPUT characters."""
    text = printable(text)
    return (
        text
        if len(text) <= MAX_OUTPUT
        else f"{text[:MAX_OUTPUT]}\n[… {len(text) - MAX_OUTPUT} more characters]"
    )


def write(path: Path, document: dict) -> None:
    """Write the document, replacing the file in one step.

    So nobody ever reads half of the document, even if the grader crashes.
    """
    with written_whole(path) as file:
        file.write(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False).encode())
