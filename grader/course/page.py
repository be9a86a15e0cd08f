"""Writes course.html: the course's points, its hardest problems, and checks that may be wrong.

The page is for instructors. It needs no other file, no script and no network. It links to the
report of each submission, in the folder ``submissions`` beside the page. Any text on the page may
come from a student.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from grader.atomic_write import written_whole
from grader.course import charts, page_checks
from grader.course.flags import FEWEST_SUBMISSIONS
from grader.course.item_analysis import histogram, quartiles
from grader.course.outcomes import GradedSubmission
from grader.course.results import BROKE, GRADED, REFUSED, SET_ASIDE, WAITING, SubmissionResult
from grader.course.submissions import Student
from grader.course.tables import Row, as_bytes, facts, table, three_digits
from grader.course.view import NAME, View, link, named, number_of, untimed, view_of, without_files
from grader.diagnosis.finding import short
from grader.reports.layout import scrolling, whole_page
from grader.reports.markup import Html, tag, text
from grader.reports.summary import points
from grader.version import VERSION

MOST_SLOW = 10
BINS = 20
SEEDS = (
    "Each submission was graded with a different seed. So hidden checks had different inputs, and"
    " their messages show different values. To repeat a grading exactly, use its seed from"
    " scores.csv. The seed of the course, in course.json, must be kept secret."
)
STATUSES = (GRADED, REFUSED, BROKE, SET_ASIDE, WAITING)


def write(
    path: Path, title: str, results: Sequence[SubmissionResult], missing: Sequence[Student] = ()
) -> None:
    """Write the page. It replaces the old file in one step.

    ``missing`` lists the students who handed in nothing. If the page cannot be written, raise
    OSError and leave the old file as it is.
    """
    content = page(title, results, missing).encode(errors="replace")
    with written_whole(path) as file:
        file.write(content)


def page(title: str, results: Sequence[SubmissionResult], missing: Sequence[Student] = ()) -> str:
    view = view_of(results, missing)
    sections = {
        "summary": ("Summary", _summary),
        "problems": ("Problems", page_checks.problems),
        "checks": ("Checks", page_checks.checks),
        "messages": ("Messages", page_checks.messages),
        "costs": ("Time and memory", _costs),
        "submissions": ("Submissions", _submissions),
    }
    written = f"Written {time.strftime('%Y-%m-%d %H:%M')} by Lockstep {VERSION}."
    links = [tag("li", tag("a", name, href=f"#{id}")) for id, (name, _) in sections.items()]
    return whole_page(
        title=text(f"{title}: {number_of(len(results), 'submission')}, graded by Lockstep"),
        header=text(
            tag("h1", short(title, NAME)), tag("nav", tag("ul", *links), aria_label="Sections")
        ),
        main=text(*(_section(id, *section, view) for id, section in sections.items())),
        footer=text(tag("p", SEEDS, class_="soft"), tag("p", written, class_="soft")),
        style=Path(__file__).with_name("page.css").read_text("utf-8"),
    )


def _section(id: str, name: str, content: Callable[[View], list[Html]], view: View) -> Html:
    return tag("section", tag("h2", name, id=id), *content(view), aria_labelledby=id)


# ——— the summary


def _summary(view: View) -> list[Html]:
    of_status = Counter(result.status for result in view.results)
    late = sum(bool(result.days_late) for result in view.results)
    unknown = sum(result.days_late is None for result in view.results)
    counts = {"submissions": len(view.results)}
    counts |= {status: of_status[status] for status in STATUSES if of_status[status]}
    counts |= {"late": late} | ({"time unknown": unknown} if unknown else {})
    counts["missing"] = len(view.missing)
    parts = [facts(counts), *(tag("p", one, class_="notice") for one in _warnings(view))]
    totals = np.array([one.points for one in view.course.graded if one.outcomes])
    if not len(totals):
        return [*parts, tag("p", "No submission has readable results, so there are no numbers.")]
    best, (lower, median, upper) = view.course.best, quartiles(totals)
    numbers = {"mean": totals.mean(), "median": median}
    numbers |= {"lower quartile": lower, "upper quartile": upper}
    caption = f"Points, out of {best:g}, before anything is taken off for lateness"
    title = f"Totals of {len(totals)} graded submissions, in points"
    drawn = charts.histogram(title, histogram(totals, best, BINS), best, three_digits)
    shown = {name: f"{value:.1f}" for name, value in numbers.items()}
    return [*parts, tag("h3", caption), facts(shown), scrolling(drawn, title)]


def _warnings(view: View) -> list[Html]:
    course = view.course
    told: list[str] = []
    told += filter(None, (untimed(view.results), without_files(view.results)))
    if 0 < len(course.graded) < FEWEST_SUBMISSIONS:
        told.append(
            f"With fewer than {FEWEST_SUBMISSIONS} graded submissions (here {len(course.graded)})"
            " the statistics of checks mean little, and no check or problem is flagged."
        )
    if len(versions := course.versions()) > 1:
        told.append(
            f"These results come from {len(versions)} versions of the grader:"
            f" {', '.join(short(one, NAME) for one in versions)}. Their checks may differ. Before"
            " you compare submissions, grade all of them again with one version."
        )
    if damaged := course.damaged():
        told.append(
            f"Damaged results: {_named(damaged)}. Some entries cannot be read, so these totals may"
            " be too low. Grade these submissions again."
        )
    if lacking := [one for one in course.incomplete() if not one.unreadable]:
        told.append(
            f"The results of {_named(lacking)} lack checks that other results contain. These"
            " submissions count only for the checks that their results contain."
        )
    return [text(one) for one in told]


def _named(found: Sequence[GradedSubmission]) -> str:
    names = named([one.result.submission.id for one in found])
    return f"{number_of(len(found), 'submission')} ({names})"


# ——— time and memory


def _costs(view: View) -> list[Html]:
    ran = [result for result in view.results if result.seconds > 0]
    if not ran:
        return [tag("p", "No grading was measured.")]

    def as_seconds(number: float) -> str:
        return f"{three_digits(number)} s"

    measured = (
        ("Seconds of the gradings", [result.seconds for result in ran], as_seconds),
        ("Peak memory of the gradings", [result.peak_bytes for result in ran], as_bytes),
    )
    drawn = []
    for title, values, written in measured:
        if most := max(values):
            counts = histogram(np.array(values), most, BINS // 2)
            chart = scrolling(charts.histogram(title, counts, most, written), title)
            drawn.append(tag("div", tag("h3", title), chart))
    slow = sorted(ran, key=lambda result: -result.seconds)[:MOST_SLOW]
    large = sorted(ran, key=lambda result: -result.peak_bytes)[:MOST_SLOW]
    tables = [
        table(caption, ("Submission", "Seconds", "Peak memory"), list(map(_cost, found)))
        for caption, found in (
            ("The slowest gradings", slow),
            ("The gradings with the most memory", large),
        )
    ]
    sides = (tag("div", table) for table in tables)
    return [tag("div", *drawn, class_="charts"), tag("div", *sides, class_="charts")]


def _cost(result: SubmissionResult) -> Row:
    return Row(link(result), f"{result.seconds:.1f}", as_bytes(result.peak_bytes))


# ——— submissions


def _submissions(view: View) -> list[Html]:
    graded = {one.result.submission.id: one for one in view.course.graded}
    rows = [_submission(result, graded.get(result.submission.id)) for result in view.results]
    names = ("Submission", "Handed in by", "Points", "After lateness", "Days late", "Status")
    parts = [table("All submissions", names, rows)] if rows else []
    if view.missing:
        parts.append(tag("h3", f"Missing: {number_of(len(view.missing), 'student')} of the roster"))
        lines = [
            Row(short(str(one), NAME), short(one.sid, NAME), short(one.email, NAME))
            for one in view.missing
        ]
        parts.append(table("People without a submission", ("Name", "Number", "Email"), lines))
    return parts


def _submission(result: SubmissionResult, graded: GradedSubmission | None) -> Row:
    status = result.status + (f": {short(result.why)}" if result.why else "")
    damaged = graded is not None and (graded.unreadable or not graded.outcomes)
    status += ", but the results are damaged" if damaged else ""
    both = (graded.points, graded.points_kept) if graded else ()
    shown = ["" if value is None else points(value) for value in both] or ["", ""]
    late = f"{result.days_late:g}" if result.days_late else ""
    who = short(", ".join(map(str, result.submission.students)), 2 * NAME)
    is_marked = damaged or result.status in (REFUSED, BROKE, SET_ASIDE)
    return Row(link(result), who, *shown, late, status, marked=bool(is_marked))
