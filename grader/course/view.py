"""Computes everything that a course's page shows. Each number is computed only once."""

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from grader.course.flags import Flag, flags
from grader.course.item_analysis import Item, items
from grader.course.message_clusters import MessageCluster, clusters
from grader.course.outcomes import CourseOutcomes, read
from grader.course.results import GRADED, NO_FILES, SubmissionResult
from grader.course.submissions import Student
from grader.diagnosis.finding import short
from grader.reports.markup import Html, tag, text

NAME = 80  # characters of a student's name, or of an id
MOST_NAMED = 12  # how many submissions a sentence names


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


def named(names: Sequence[str]) -> str:
    """Return names as text. If there are more than MOST_NAMED, give only the first ones."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{', '.join(short(name, NAME) for name in names[:MOST_NAMED])}{more}"


def untimed(results: Sequence[SubmissionResult]) -> str:
    """Return a warning about submissions whose lateness is unknown, or "" if there are none."""
    found = [one.submission for one in results if one.days_late is None]
    if not found:
        return ""
    marked = [one.id for one in found if one.is_marked_late]
    on_canvas = (
        f" Canvas marks {len(marked)} of these submissions as late: {named(marked)}."
        if marked
        else ""
    )
    return (
        "There is a due date, but the export does not say when"
        f" {number_of(len(found), 'submission')} {'was' if len(found) == 1 else 'were'} handed in."
        " If the time is unknown, nothing is taken off, and the points after lateness are left"
        f" empty.{on_canvas}"
    )


def without_files(results: Sequence[SubmissionResult]) -> str:
    """Return a warning about submissions without a file of the assignment, or "" if none."""
    found = [one.submission.id for one in results if one.why == NO_FILES]
    if not found:
        return ""
    many = f"{number_of(len(found), 'submission')} {'has' if len(found) == 1 else 'have'}"
    return (
        f"{many} none of the assignment's files: {named(found)}. Check whether the files have"
        " other names, or are in an archive that is not read: a .tar.gz, or a zip inside a zip."
    )


def link(result: SubmissionResult, place: str = "") -> Html:
    """Return the id of a submission, as a link to its report if there is one."""
    name = short(result.submission.id, NAME)
    if result.status != GRADED:
        return text(name)
    folder = quote(result.submission.id, safe="", errors="replace")
    anchor = quote(place, safe="#", errors="replace")
    return tag("a", name, href=f"submissions/{folder}/report.html{anchor}")
