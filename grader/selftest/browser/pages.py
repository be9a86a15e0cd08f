"""Lists the pages that are tested, and writes each of them with the words that a test asks for."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

from grader.check.record import ERROR, FAILED, NOT_RUN, SKIPPED, Record
from grader.course import page as course_page
from grader.course.results import BROKE, GRADED, REFUSED, SET_ASIDE, SubmissionResult
from grader.course.results import WAITING as NOT_YET
from grader.course.submissions import Student, Submission
from grader.diagnosis.finding import Finding
from grader.diagnosis.spans import COMMUNICATING, COMPUTING, TIMED, WAITING, Span
from grader.reports import page as report_page
from grader.reports.results_json import as_results
from grader.selftest.browser.hostile import rewritten
from grader.selftest.course_class import make
from grader.wire.events import Operation

# The source of a page: the records of one grading, and its notes.
Graded = tuple[list[Record], list[str]]
# Writes a page of a grading into a folder, and returns its file. If it gets a function that gives
# words, it puts these words in every place whose text a submission or an upload can determine.
WritePage = Callable[[Path, Graded, Callable[[], str] | None], Path]


def report(folder: Path, graded: Graded, words: Callable[[], str] | None) -> Path:
    """Write the report of one submission."""
    records, notes = graded
    records = [*records, *_rare(records[0])]
    name = "the-submission-of-a-student-with-a-long-name"
    if words:
        records, notes, name = rewritten(records, words), [words() for _ in notes], words()
    target = folder / "report.html"
    report_page.write(target, records, name, notes)
    return target


def _rare(like: Record) -> list[Record]:
    """Return records that this grading lacks: other statuses, and a drawing of everything."""
    told = {
        SKIPPED: Finding("Skipped: needs 2 GPUs."),
        ERROR: Finding("The grader failed."),
        NOT_RUN: Finding("No time."),
        FAILED: Finding("Everything is drawn.", spans=_every_span()),
    }
    return [
        Record(like.id, like.part, like.number, f"A check: {status}", 0.5, "visible", status, found)
        for status, found in told.items()
    ]


def _every_span() -> tuple[Span, ...]:
    """Return spans in all colours of a drawing, with numbers of micro-batches."""
    barrier = Operation(
        *(0, 0, "barrier", 0, None, None, [], [], 0, None, None, None, 0, [0, 1], "", "a.py", 7)
    )
    program = (
        (COMPUTING, "forward 1", 1, None),
        (COMPUTING, "backward 12", 12, None),
        (COMPUTING, "", None, None),
        (COMPUTING, "late", None, None),
        (COMMUNICATING, "all-reduce", None, None),
        (COMMUNICATING, "barrier", None, barrier),
    )
    spans = [
        Span(rank, kind, label, at, at + 1, number, operation=operation)
        for rank in (0, 1)
        for at, (kind, label, number, operation) in enumerate(program)
    ]
    beside = [
        Span(1, TIMED, "timed 1", 0.5, 2.5, background=True),
        Span(1, COMMUNICATING, "send", 1, 3, background=True),
        Span(1, COMMUNICATING, "receive", 2, None, background=True),
        Span(0, WAITING, "receive from rank 1", 6, None, where="a.py:8", awaits=(1,)),
    ]
    return tuple(spans + beside)


def course(folder: Path, graded: Graded, words: Callable[[], str] | None) -> Path:
    """Write the page about a course, with a result of each status and one of this grading."""
    own = as_results(graded[0], 9.0, graded[1], {"seed": 7})
    results = [*make(7, 40), _result("own", GRADED, own)]
    results += [_result(status, status) for status in (REFUSED, BROKE, SET_ASIDE, NOT_YET)]
    missing, title = [Student("Nobody", "s0", "nobody@example.org")], "A course"
    if words:
        results = [_reworded(result, words) for result in results]
        missing, title = [Student(words(), words(), words())], words()
    target = folder / "course.html"
    course_page.write(target, title, results, missing)
    return target


def _result(name: str, status: str, document: dict | None = None) -> SubmissionResult:
    submission = Submission(name, (Student(name, name, f"{name}@example.org"),))
    return SubmissionResult(submission, status, "It says why.", document=document or {})


def _reworded(result: SubmissionResult, words: Callable[[], str]) -> SubmissionResult:
    """Return a result with other words in every text that a student or an export can determine."""
    students = tuple(Student(words(), words(), words()) for _ in result.submission.students)
    document = deepcopy(result.document)
    for test in document.get("tests", []):
        if test["score"] < test["max_score"]:
            # The words must not decide which messages look alike. A student's line does not count
            # for that.
            test["output"] += f"\n    file.py:7 in f: {' '.join(words().splitlines())}"
    return replace(
        result,
        submission=replace(result.submission, students=students),
        why=words() if result.why else "",
        document=document,
    )


PAGES: dict[str, WritePage] = {"report": report, "course": course}
