"""Computes everything that a course's page shows, so that nothing is computed twice."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from grader.course.flags import Flag, flags
from grader.course.item_analysis import Item, items
from grader.course.message_clusters import MessageCluster, clusters
from grader.course.outcomes import CourseOutcomes, read
from grader.course.results import GRADED, SubmissionResult
from grader.course.submissions import Student
from grader.diagnosis.finding import short
from grader.reports.markup import Html, tag, text

NAME = 80  # characters of a student's name, or of an id


@dataclass
class View:
    """The results of a course, and what was computed from the results."""

    results: Sequence[SubmissionResult]
    missing: Sequence[Student]
    course: CourseOutcomes
    items: Sequence[Item]
    clusters: Sequence[MessageCluster]
    flags: dict[str, list[Flag]]  # by the id of the check


def view_of(results: Sequence[SubmissionResult], missing: Sequence[Student]) -> View:
    course = read(results)
    numbers, found = items(course), clusters(course)
    raised = flags(course, numbers, found)
    return View(results, missing, course, numbers, found, raised)


def number_of(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def link(result: SubmissionResult, place: str = "") -> Html:
    """Return the id of a submission, as a link to its report if there is one."""
    name = short(result.submission.id, NAME)
    if result.status != GRADED:
        return text(name)
    folder = quote(result.submission.id, safe="", errors="replace")
    anchor = quote(place, safe="#", errors="replace")
    return tag("a", name, href=f"submissions/{folder}/report.html{anchor}")
