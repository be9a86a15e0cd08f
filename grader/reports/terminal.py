"""Shows a grading on the terminal, to an instructor or to a student.

While the grading runs, the terminal shows the progress. At the end it shows the messages, and then
a table of points.
"""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from grader.check.record import (
    ERROR,
    FAILED,
    NOT_ATTEMPTED,
    NOT_RUN,
    PASSED,
    SKIPPED,
    TO_DO,
    UNIMPLEMENTED,
    Record,
    messages,
    to_do,
)
from grader.course_file import course
from grader.reports.palette import TEXT
from grader.reports.results_json import clean
from grader.reports.summary import Group, points, rule, summary
from grader.session import is_students_copy

# The checks of these statuses are listed together. After an interruption, many checks are not run.
TOGETHER = TO_DO | {NOT_RUN: "Not run"}
STATUS_STYLES = {
    PASSED: TEXT["good"].terminal,
    FAILED: TEXT["bad"].terminal,
    UNIMPLEMENTED: TEXT["open"].terminal,
    NOT_ATTEMPTED: TEXT["open"].terminal,
    SKIPPED: TEXT["other"].terminal,
    ERROR: TEXT["bad"].terminal,
    NOT_RUN: TEXT["bad"].terminal,
}


def progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),  # a folder may be named “lab [red]”
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
        redirect_stdout=False,  # what pytest prints is redirected already
        redirect_stderr=False,
    )


def show(console: Console, records: list[Record], notes: list[str]) -> None:
    total = summary(records)
    _messages(console, total.records)
    if total.base.records or not total.extra.records:
        _table(console, total.base)
    if total.extra.records:
        _table(console, total.extra)
        console.print(Text(f"Extra credit: {rule(total, course().extra_credit.counts)}"))
    for note in notes:
        console.print(Text(clean(note)))


def show_also(console: Console, records: list[Record], device: str) -> None:
    """Show the results of the same checks on GPUs. These results do not change the points."""
    total = summary(records)
    console.print(Text(f"Also on {device}, without points:", style="bold"))
    _messages(console, [r for r in total.records if r.status != SKIPPED], has_points=False)
    _table(console, total, has_points=False)


def _messages(console: Console, records: list[Record], has_points: bool = True) -> None:
    shown = [record for record in records if record.status not in (PASSED, *TOGETHER)]
    for record, message in zip(shown, messages(shown)):
        head = Text(f"\n{record.number} {clean(record.name)}  ", style="bold")
        lost = f", −{points(record.points)}" if has_points else ""
        head.append(f"{record.status}{lost}", style=STATUS_STYLES[record.status])
        console.print(head)
        console.print(Text(clean(message)), soft_wrap=True)
        if (told := record.finding.for_instructor) and not is_students_copy():
            console.print(Text(clean(f"For the instructor: {told}")), soft_wrap=True)
    for status, line in to_do(records, TOGETHER):
        console.print(Text(f"\n{line}", style=STATUS_STYLES[status]))


def _table(console: Console, total: Group, has_points: bool = True) -> None:
    table = Table(
        title=total.title if total.title != "Total" else "", show_footer=True, header_style="bold"
    )
    table.add_column("Problem", footer="Total")
    table.add_column("", footer="")
    table.add_column("Checks passed", justify="right", footer=total.checks_passed)
    if has_points:
        table.add_column("Points", justify="right", footer=total.points)
    table.add_column("", footer="")
    for problem in total.problems():
        counts = {status: problem.count(status) for status in STATUS_STYLES if status != PASSED}
        rest = Text(", ").join(
            Text(f"{n} {s}", style=STATUS_STYLES[s]) for s, n in counts.items() if n
        )
        score = [problem.points] if has_points else []
        table.add_row(problem.number, problem.title, problem.checks_passed, *score, rest)
    console.print(table)
