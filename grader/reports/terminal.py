"""What an instructor sees on the terminal: progress while it runs, then messages, then a table of points."""

from itertools import groupby

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from grader.assignment import PARTS
from grader.reports.record import ERROR, FAILED, NOT_RUN, PASSED, SKIPPED, UNIMPLEMENTED, Record
from grader.reports.results import clean, order

STYLES = {
    PASSED: "green",
    FAILED: "red",
    UNIMPLEMENTED: "yellow",
    SKIPPED: "cyan",
    ERROR: "bold red",
    NOT_RUN: "bold red",
}


def progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def points(value: float) -> str:
    """Without needless zeros, on eighths exact."""
    return f"{value:.3f}".rstrip("0").rstrip(".")


def show(console: Console, records: list[Record], notes: list[str]) -> None:
    records = sorted(records, key=order)
    _messages(console, records)
    _table(console, records)
    for note in notes:
        console.print(Text(clean(note)))


def _messages(console: Console, records: list[Record]) -> None:
    for record in records:
        if record.status in (PASSED, UNIMPLEMENTED):
            continue
        head = Text(f"\n{record.number} {clean(record.name)}  ", style="bold")
        head.append(f"{record.status}, −{points(record.points)}", style=STYLES[record.status])
        console.print(head)
        console.print(Text(clean(record.message)), soft_wrap=True)
    if untouched := [record for record in records if record.status == UNIMPLEMENTED]:
        numbers = ", ".join(dict.fromkeys(record.number for record in untouched))
        console.print(
            Text(f"\nNot implemented yet, {len(untouched)} checks: problems {numbers}", style=STYLES[UNIMPLEMENTED])
        )


def _table(console: Console, records: list[Record]) -> None:
    table = Table(title="", show_footer=True, header_style="bold")
    total, best = sum(r.score for r in records), sum(r.points for r in records)
    passed = sum(r.status == PASSED for r in records)
    table.add_column("Problem", footer="Total")
    table.add_column("", footer="")
    table.add_column("Checks passed", justify="right", footer=f"{passed} of {len(records)}")
    table.add_column("Points", justify="right", footer=f"{points(total)} of {points(best)}")
    table.add_column("", footer="")
    for number, group in groupby(records, key=lambda r: r.number):
        of_problem = list(group)
        counts = {s: sum(r.status == s for r in of_problem) for s in STYLES}
        rest = Text(", ").join(Text(f"{n} {s}", style=STYLES[s]) for s, n in counts.items() if n and s != PASSED)
        table.add_row(
            number,
            PARTS[of_problem[0].part].problems.get(number, ""),
            f"{counts[PASSED]} of {len(of_problem)}",
            f"{points(sum(r.score for r in of_problem))} of {points(sum(r.points for r in of_problem))}",
            rest,
        )
    console.print(table)
