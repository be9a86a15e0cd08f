"""Lists the pages that are tested, and writes each of them with the words that a test asks for."""

from collections.abc import Callable
from pathlib import Path

from grader.check.record import ERROR, FAILED, NOT_RUN, SKIPPED, Record
from grader.diagnosis.finding import Finding
from grader.diagnosis.spans import COMMUNICATING, COMPUTING, TIMED, WAITING, Span
from grader.reports import page as report_page
from grader.selftest.browser.hostile import rewritten
from grader.wire.events import Operation

# What pages are made of: the records of one grading, and its notes.
Graded = tuple[list[Record], list[str]]
# Writes a page of a grading into a folder, and returns its file. If it gets a function that gives
# words, these words stand wherever a submission or an upload may have a say.
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
    """Return records of kinds that this grading has not: other statuses, a drawing of everything."""
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


PAGES: dict[str, WritePage] = {"report": report}
