"""Writes scores.csv: a line for each student, with the points of every problem."""

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from grader.atomic_write import written_whole
from grader.course.results import GRADED, SubmissionResult
from grader.course.submissions import Student
from grader.course_file import course

PERSON = ("submission", "name", "sid", "email", "handed_in")
TOTALS = ("total", "days_late", "total_after_lateness")
OUTCOME = ("status", "why", "seed", "version", "seconds", "peak_mib")
MISSING = "missing"  # the status of a student of the roster who handed in nothing


def write(path: Path, results: Sequence[SubmissionResult], missing: Sequence[Student] = ()) -> None:
    """Write the file. Points are not rounded. A group has a line for each of its students.

    If a submission has no score, its cells for points are empty, not zero. If it is unknown whether
    a submission is late, its cells for lateness are empty, too.
    """
    problems = list(course().problems)
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow([*PERSON, *TOTALS, *problems, *OUTCOME])
    for result in results:
        for student in result.submission.students or (Student(),):
            lines.writerow([_safe(cell) for cell in _line(result, student, problems)])
    for student in missing:
        person = ["", student.name, student.sid, student.email, ""]
        empty = [""] * (len(TOTALS) + len(problems))
        lines.writerow([_safe(cell) for cell in [*person, *empty, MISSING]])
    with written_whole(path) as file:
        # Excel reads a file as UTF-8 only if the file begins with a byte order mark.
        # A name may come from a file name that is no Unicode.
        file.write(out.getvalue().encode("utf-8-sig", errors="replace"))


def _line(result: SubmissionResult, student: Student, problems: list[str]) -> list:
    one = result.submission
    points: list = [""] * len(problems)
    totals: list = ["", result.days_late, ""]
    if result.status == GRADED:
        points = [_points(result, number) for number in problems]
        totals = [result.total, result.days_late, result.total_kept]
    # A spreadsheet would round such a long number. SEED= in front makes the seed a text.
    seed = f"SEED={result.seed}" if result.seed else ""
    outcome = [result.status, result.why, seed, result.version]
    cost = [round(result.seconds, 1), round(result.peak_bytes / (1 << 20))]
    person = [one.id, student.name, student.sid, student.email, one.handed_in]
    return [*person, *totals, *points, *outcome, *cost]


def _points(result: SubmissionResult, number: str) -> float | str:
    """Return the points of a problem; "" if the result has no check of this problem."""
    own = [test["score"] for test in result.tests if test["number"] == number]
    return sum(own) if own else ""


def _safe(cell: object) -> object:
    """Return the cell in a form that no spreadsheet reads as a formula.

    A spreadsheet would read a name such as ``=HYPERLINK(…)`` as a formula. A quote in front of the
    name makes it text.
    """
    if isinstance(cell, str) and cell.startswith(("=", "+", "-", "@", "\t", "\r")):
        return f"'{cell}"
    return cell
