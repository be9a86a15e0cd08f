"""Writes the report as one page of HTML that needs no other file, no script and no network.

The page shows the same records as the terminal and results.json. Beside each message it shows
evidence that is too long for the message: expected and actual values where they differ, the
outcome of each rank, what each rank did and when, and what each rank communicated.
"""

import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

from grader.atomic_write import written_whole
from grader.check.record import (
    ERROR,
    FAILED,
    NOT_ATTEMPTED,
    NOT_RUN,
    PASSED,
    SKIPPED,
    UNIMPLEMENTED,
    Record,
)
from grader.course_file import course
from grader.diagnosis.finding import (
    LIKELY,
    RANKS,
    SAID,
    VALUES,
    Compared,
    Finding,
    RankSummary,
    printable,
)
from grader.diagnosis.rank_summaries import rank_list
from grader.reports.layout import scrolling, whole_page
from grader.reports.markup import Html, tag, text
from grader.reports.results_json import clean
from grader.reports.summary import Group, points, rule, summary
from grader.reports.svg_drawing import svg

WITHOUT_FULL_POINTS = (FAILED, UNIMPLEMENTED, NOT_ATTEMPTED, SKIPPED, ERROR, NOT_RUN)
SHOWN_AT_ONCE = (FAILED, SKIPPED, ERROR, NOT_RUN)  # the evidence of such checks is unfolded
# CSS classes. All other statuses have the class "other".
LOOKS = {PASSED: "passed", FAILED: "failed"}
LOOKS |= {UNIMPLEMENTED: "unimplemented", NOT_ATTEMPTED: "unimplemented"}
NUMBERS = ("Checks passed", "Points", "Times", "Bytes")  # columns that hold numbers


def write(path: Path, records: list[Record], submission: str, notes: Sequence[str]) -> None:
    """Write the page, replacing the file in one step.

    Raise OSError if the page cannot be written. The old file then stays as it is.
    """
    with written_whole(path) as file:
        file.write(page(records, submission, notes).encode())


def page(records: list[Record], submission: str, notes: Sequence[str]) -> str:
    total = summary(records)
    facts = [tag("li", clean(note.strip())) for note in notes]
    return whole_page(
        title=text(f"{_first(total).points} points: {submission}, graded by Lockstep"),
        header=_header(total, submission),
        main=_main(total),
        footer=text(tag("h2", "How it was graded"), tag("ul", *facts)),
    )


def _header(total: Group, submission: str) -> Html:
    lost, public = _lost(total), all(record.visibility == "visible" for record in total.records)
    return text(
        tag("h1", f"Lockstep: the results of {submission}"),
        _total(_first(total)),
        _extra_credit(total) if total.extra.records else "",
        tag("p", "This page contains only the public checks.") if public else "",
        tag(
            "p",
            f"{total.checks_passed} checks passed",
            f", {lost}" if lost else "",
            ".",
            class_="soft",
        ),
        tag("p", f"Graded {time.strftime('%Y-%m-%d %H:%M')}.", class_="soft"),
    )


def _first(total: Group) -> Group:
    """Return the checks whose points are shown first.

    These are the checks of extra credit only if nothing else was graded.
    """
    return total.extra if _is_extra_only(total) else total.base


def _is_extra_only(total: Group) -> bool:
    return bool(total.extra.records and not total.base.records)


def _total(first: Group) -> Html:
    best = f" of {points(first.best)} points"
    return tag("p", tag("b", points(first.score)), best, class_="total")


def _extra_credit(total: Group) -> Html:
    told = f"Extra credit: {total.extra.points} points. {rule(total, course().extra_credit.counts)}"
    return tag("p", told)


def _main(total: Group) -> Html:
    box = tag("input", type="checkbox", id="only")
    label = tag("label", "Show only checks that did not pass", for_="only", class_="filter")
    tables = []
    if not _is_extra_only(total):
        tables.append(_points(total.base, "Points by problem"))
    if total.extra.records:
        tables.append(_points(total.extra, "Extra credit"))
    return text(*tables, box, label, *map(_part, total.parts()))


def _lost(group: Group) -> str:
    return ", ".join(
        f"{count} {status}" for status in WITHOUT_FULL_POINTS if (count := group.count(status))
    )


# ——— tables


def _table(
    caption: object, look: str, names: Sequence[str], rows: Sequence[Html], foot: Html | None = None
) -> Html:
    head = (
        tag("th", name, scope="col", class_="number" if name in NUMBERS else None) for name in names
    )
    body = tag("thead", tag("tr", *head)), tag("tbody", *rows), tag("tfoot", foot) if foot else None
    return scrolling(tag("table", tag("caption", caption), *body, class_=look), str(caption))


def _row(name: object, *cells: object, wrong: bool = False) -> Html:
    """Return a row that begins with its heading. Align whole numbers to the right."""
    written = (
        (
            cell
            if isinstance(cell, Html)
            else tag("td", f"{cell:,}" if isinstance(cell, int) else cell, class_=_side(cell))
        )
        for cell in cells
    )
    return tag("tr", tag("th", name, scope="row"), *written, class_="wrong" if wrong else None)


def _side(cell: object) -> str | None:
    return "number" if isinstance(cell, int) else None


def _points(total: Group, caption: str) -> Html:
    """Return a table of points like the one on the terminal, with a link to each problem."""

    def row(group: Group, name: object, look: str | None = None) -> Html:
        title = tag("td", group.title if group.number else "", class_="title")
        numbers = (
            tag("td", number, class_="number") for number in (group.checks_passed, group.points)
        )
        return tag(
            "tr",
            tag("th", name, scope="row"),
            title,
            *numbers,
            tag("td", _lost(group)),
            class_=look,
        )

    rows = []
    for part in total.parts():
        rows.append(row(part, f"Part {part.number}", "part"))
        rows += [
            row(problem, tag("a", problem.number, href=f"#{_anchor(problem)}"))
            for problem in part.problems()
        ]
    names = ("Problem", "Title", "Checks passed", "Points", "Not passed")
    return _table(caption, "points", names, rows, row(total, "Total"))


def _anchor(problem: Group) -> str:
    return f"problem-{problem.number}"


# ——— checks


def _part(part: Group) -> Html:
    name = f"part-{part.number}"
    head = tag("h2", f"{part.number} {part.title} ", tag("small", _worth(part)), id=name)
    look = "of-part whole" if part.passed == len(part.records) else "of-part"
    return tag("section", head, *map(_problem, part.problems()), class_=look, aria_labelledby=name)


def _worth(group: Group) -> str:
    """Return the points of a problem or a part, and whether they are extra credit."""
    base, extra = group.base, group.extra
    told = [f"{base.points} points"] if base.records else []
    return ", ".join([*told, *([f"extra credit {extra.points}"] if extra.records else [])])


def _problem(problem: Group) -> Html:
    head = tag(
        "h3",
        f"{problem.number} {problem.title} ",
        tag("small", _worth(problem)),
        id=_anchor(problem),
    )
    look = "whole" if problem.passed == len(problem.records) else None
    return tag("div", head, *map(_check, problem.records), class_=look)


def _check(record: Record) -> Html:
    hidden = tag("span", " (hidden)", class_="soft") if record.visibility != "visible" else None
    line = tag(
        "summary",
        tag("span", record.status, class_="status"),
        tag("span", clean(record.name), hidden, class_="sentence"),
        tag("span", f"{points(record.score)} of {points(record.points)}", class_="worth"),
    )
    inside = tag("div", _evidence(record.finding), _ran(record), class_="evidence")
    look = f"check {LOOKS.get(record.status, 'other')}"
    return tag("details", line, inside, class_=look, open=record.status in SHOWN_AT_ONCE)


def _ran(record: Record) -> Html | None:
    """Return a line that says how often a check ran, on how many ranks, and for how long.

    Return None if no rank started.
    """
    if not record.worlds:
        return None
    sizes = sorted(set(record.worlds))
    ranks = "1 rank" if sizes == [1] else f"{rank_list(sizes).partition(' ')[2]} ranks"
    times = "once" if len(record.worlds) == 1 else f"{len(record.worlds)} times"
    return tag("p", f"Ran {times}, on {ranks}, in {record.seconds:.1f} s.", class_="soft")


# ——— what was found, in the order of the message


def _evidence(finding: Finding) -> Html:
    return text(
        tag("p", tag("code", clean(finding.call))) if finding.call else None,
        tag("p", clean(finding.headline), class_="headline") if finding.headline else None,
        *_message(finding),
        _timeline(finding) if finding.spans else None,
        _traffic(finding.ranks) if len(finding.ranks) > 1 else None,
        *_printed(finding.ranks),
    )


def _message(finding: Finding) -> list[Html]:
    """Return the message, with tables in place of its lines about values and about ranks.

    If the message has no lines about values, the table of values comes first. If it has no lines
    about ranks, the table of ranks comes last.
    """
    tables = {VALUES: _values(finding.ranks), RANKS: _ranks(finding.ranks)}
    parts = [] if finding.of_kind(VALUES) else tables.pop(VALUES)
    for kind, lines in groupby(finding.lines, key=lambda line: line.kind):
        sentences = [clean(line.text) for line in lines]
        if kind == SAID:
            parts.append(tag("pre", clean("\n".join(sentences))))
        elif kind == LIKELY:
            parts += [tag("p", sentence, class_="likely") for sentence in sentences]
        else:
            parts += tables.pop(kind, [])
    return parts + [part for table in tables.values() for part in table]


def _values(ranks: Sequence[RankSummary]) -> list[Html]:
    """Return tables of expected and actual values, one for each rank whose value is wrong."""
    pairs = [_pair(one.rank, one.compared) for one in ranks if one.compared]
    return [tag("h4", "Expected and got"), tag("div", *pairs, class_="pairs")] if pairs else []


def _pair(rank: int, compared: Compared) -> Html:
    def left_out(count: int, where: str) -> list[Html]:
        entries = "entry" if count == 1 else "entries"
        return (
            [tag("tr", tag("td", f"… {count:,} {entries} {where}", colspan="4", class_="soft"))]
            if count
            else []
        )

    alike = compared.expected == compared.got
    rows = (
        []
        if alike
        else [_row("the whole value", compared.expected, compared.got, "differs", wrong=True)]
    )
    rows += left_out(compared.before, "before")
    for cell in compared.cells:
        rows.append(
            _row(
                cell.place,
                cell.expected,
                cell.got,
                "differs" if cell.wrong else "",
                wrong=cell.wrong,
            )
        )
    rows += left_out(compared.after, "after")
    place = f"Rank {rank}, {compared.path}" if compared.path else f"Rank {rank}"
    caption = ", ".join(
        [place, *([compared.got] if alike else []), *([compared.wrong] if compared.wrong else [])]
    )
    return _table(caption, "sides", ("At", "Expected", "Got", "Differs"), rows)


def _ranks(ranks: Sequence[RankSummary]) -> list[Html]:
    judged = any(one.compared for one in ranks)

    def row(one: RankSummary) -> Html:
        details = (tag("code", line, class_="where") for line in one.details)
        verdict = (
            (", which is wrong" if one.compared else ", which is as expected") if judged else ""
        )
        return _row(one.rank, tag("td", one.fate, verdict, *details))

    names = ("Rank", "Outcome")
    return [_table("Outcome of each rank", "ranks", names, list(map(row, ranks)))] if ranks else []


def _without_arguments(call: str) -> str:
    """Return the line of a call without its arguments, which are too long for a drawing."""
    name, bracket, rest = call.partition("(")
    return f"{name}{rest.rpartition(')')[2]}" if bracket else call


def _timeline(finding: Finding) -> Html:
    title = _without_arguments(finding.call)
    drawing = scrolling(Html(printable(svg(finding.spans, title))), "Timeline of the ranks")
    still = any(span.end is None for span in finding.spans)
    said = (
        "The lengths are only estimates. To measure them, use ",
        tag("code", "make timeline PART=…"),
        ", which runs your functions again.",
    )
    note = tag("p", *said, class_="soft")
    return tag(
        "details",
        tag("summary", "What each rank did, over time"),
        drawing,
        note,
        class_="inner timeline",
        open=still,
    )


def _traffic(ranks: Sequence[RankSummary]) -> Html:
    if not any(one.steps for one in ranks):
        return tag("p", "No rank communicated anything in this call.", class_="soft")
    rows = []
    for one in ranks:
        rows += [_row(one.rank, step.what, step.times, step.bytes) for step in one.steps]
        others = (
            "nothing"
            if not one.steps
            else (
                f"… {one.more_steps:,} other operation{'s' * (one.more_steps != 1)}"
                if one.more_steps
                else ""
            )
        )
        rows += [_row(one.rank, tag("td", others, colspan="3", class_="soft"))] if others else []
    if len({one.sends for one in ranks}) == 1:
        sent = f"{ranks[0].sends:,} bytes each"
    else:
        sent = ", ".join(f"{one.sends:,} bytes on rank {one.rank}" for one in ranks)
    caption = "Equal operations share a row, with their number and the sum of their bytes"
    table = _table(caption, "traffic", ("Rank", "Operation", "Times", "Bytes"), rows)
    least = tag(
        "p",
        f"With the best algorithms for these operations, ranks would send at least: {sent}.",
        class_="soft",
    )
    return tag(
        "details", tag("summary", "What each rank communicated"), table, least, class_="inner"
    )


def _printed(ranks: Sequence[RankSummary]) -> list[Html]:
    blocks = []
    for one in ranks:
        if one.printed:
            count = one.printed_before
            before = f"… {count:,} line{'s' * (count > 1)} before\n" if count else ""
            blocks += [
                tag("p", f"Rank {one.rank}", class_="soft"),
                tag("pre", before, "\n".join(one.printed)),
            ]
    return [tag("h4", "Printed"), *blocks] if blocks else []
