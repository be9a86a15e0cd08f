"""Writes results.json in the format of PrairieLearn's external graders.

``score`` is between 0 and 1. Each of ``tests`` has ``name``, ``description``, ``points``,
``max_points``, ``message`` and ``output``. PrairieLearn shows the points of the tests only if every
test has ``points`` and ``max_points``. The file has at most 1 MB. If ``gradable`` is false, the
submission does not use up an attempt, and ``format_errors`` gives the reason. (PrairieLearn,
"External Grading", "Grading results".)
"""

import json

from grader.check.record import PASSED
from grader.course_file import course
from grader.platforms.shown import ShownEntry, fitted, for_students, notes, share
from grader.reports.results_json import points_of
from grader.reports.summary import points

MAX_RESULTS_BYTES = 900_000  # PrairieLearn's limit is 1 MB


def text(document: dict) -> str:
    return fitted(document, _text, MAX_RESULTS_BYTES)


def _text(document: dict) -> str:
    got, most = points_of(document)
    found = {
        "gradable": True,
        "score": share(got, most),
        "message": f"{points(got)} of {points(most)} points",
        "output": notes(document),
        "tests": [_test(entry) for entry in for_students(document)],
    }
    return _json(found)


def _test(entry: ShownEntry) -> dict:
    return {
        "name": f"{entry.number} {entry.name}",
        "description": f"Problem {entry.number}",
        "points": entry.score,
        "max_points": entry.most,
        "message": entry.status,
        "output": "" if entry.status == PASSED else entry.message,
    }


def not_gradable() -> str:
    """Return the results of a submission without any file of the assignment."""
    why = (
        "The submission has none of the assignment's files. Upload one or more of:"
        f" {', '.join(course().files)}."
    )
    return _json({"gradable": False, "format_errors": [why]})


def _json(found: dict) -> str:
    return json.dumps(found, indent=1, allow_nan=False) + "\n"
