"""The report as one page of HTML that needs no other file, no script and no network: for whoever reads it with patience.

It shows the same records as the terminal and results.json, and beside each message the evidence that a text has no room for:
both values where they differ, what became of every rank, what each communicated, who waited when.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from string import Template

from grader.evidence.finding import LIKELY, SAID, Compared, Finding, OfRank
from grader.evidence.fates import these
from grader.reports.markup import Html, tag, text
from grader.reports.record import ERROR, FAILED, NOT_RUN, PASSED, SKIPPED, UNIMPLEMENTED, Record
from grader.reports.results import clean
from grader.reports.summary import Group, points, summary
from grader.whole import written_whole

# Status → its look. What cost points stands open.
LOOKS = {PASSED: "passed", FAILED: "failed", UNIMPLEMENTED: "unimplemented", SKIPPED: "other"}
OPEN = (FAILED, SKIPPED, ERROR, NOT_RUN)


def write(path: Path, records: list[Record], submission: str, notes: Sequence[str]) -> None:
    """Replace the file at once, or leave it as it is. Raises OSError where it cannot be written."""
    with written_whole(path) as file:
        file.write(page(records, submission, notes).encode())


def page(records: list[Record], submission: str, notes: Sequence[str]) -> str:
    total = summary(records)
    template = Template(Path(__file__).with_name("page.html").read_text())
    return template.substitute(
        title=text(f"{total.points} points: {submission}, graded by Lockstep"),
        header=_header(total, submission),
        main=_main(total),
        footer=text(tag("h2", "How it was graded"), tag("ul", *(tag("li", clean(note.strip())) for note in notes))),
    )


def _header(total: Group, submission: str) -> Html:
    lost = [(status, total.count(status)) for status in (FAILED, UNIMPLEMENTED, SKIPPED, ERROR, NOT_RUN)]
    rest = "".join(f", {count} {status}" for status, count in lost if count)
    made = time.strftime("%Y-%m-%d %H:%M")
    return text(
        tag("h1", f"Lockstep: what became of {submission}"),
        tag("p", tag("b", points(total.score)), f" of {points(total.best)} points", class_="total"),
        tag("p", f"{total.checks_passed} checks passed{rest}. Graded {made}.", class_="soft"),
    )


def _main(total: Group) -> Html:
    box = tag("input", type="checkbox", id="only")
    parts = (_part(part) for part in total.parts())
    return text(_points(total), box, tag("label", "Only what did not pass", for_="only", class_="filter"), *parts)


# ——— points


def _points(total: Group) -> Html:
    """The terminal's table, with a way to each problem."""
    heads = [("Problem", None), ("Title", None), ("Checks passed", "number"), ("Points", "number"), ("Lost", None)]
    rows = []
    for part in total.parts():
        rows.append(_row(part, f"Part {part.number}", "part"))
        rows += [_row(problem, tag("a", problem.number, href=f"#{_anchor(problem)}")) for problem in part.problems()]
    return _table(
        *("Points by problem", "points"),
        tag("tr", *(tag("th", name, scope="col", class_=look) for name, look in heads)),
        rows,
        _row(total, "Total"),
    )


def _row(group: Group, name: object, look: str | None = None) -> Html:
    lost = ", ".join(
        f"{n} {status}" for status in (FAILED, UNIMPLEMENTED, SKIPPED, ERROR, NOT_RUN) if (n := group.count(status))
    )
    return tag(
        "tr",
        tag("th", name, scope="row"),
        tag("td", "" if name == "Total" else group.title, class_="title"),
        tag("td", group.checks_passed, class_="number"),
        tag("td", group.points, class_="number"),
        tag("td", lost),
        class_=look,
    )


def _anchor(problem: Group) -> str:
    return f"problem-{problem.number}"


def _table(caption: str, look: str, head: Html, rows: Sequence[Html], foot: Html | None = None) -> Html:
    """In a frame that scrolls by itself where the page is narrow, also with the keyboard."""
    parts = [tag("caption", caption), tag("thead", head), tag("tbody", *rows), tag("tfoot", foot) if foot else None]
    return tag(
        "div", tag("table", *parts, class_=look), class_="scroll", tabindex="0", role="region", aria_label=caption
    )


def _columns(*names: str) -> Html:
    return tag("tr", *(tag("th", name, scope="col", class_="number" if name in NUMBERS else None) for name in names))


NUMBERS = ("Times", "Bytes", "Sends at least")


# ——— checks


def _part(part: Group) -> Html:
    name = f"part-{part.number}"
    head = tag("h2", f"{part.number} {part.title} ", tag("small", f"{part.points} points"), id=name)
    look = "of-part whole" if part.passed == len(part.records) else "of-part"
    return tag("section", head, *map(_problem, part.problems()), class_=look, aria_labelledby=name)


def _problem(problem: Group) -> Html:
    head = tag(
        "h3", f"{problem.number} {problem.title} ", tag("small", f"{problem.points} points"), id=_anchor(problem)
    )
    look = "whole" if problem.passed == len(problem.records) else None
    return tag("div", head, *map(_check, problem.records), class_=look)


def _check(record: Record) -> Html:
    hidden = "" if record.visibility == "visible" else " (hidden)"
    summary_line = tag(
        "summary",
        tag("span", record.status, class_="status"),
        tag("span", record.name, tag("span", hidden, class_="soft"), class_="sentence"),
        tag("span", f"{points(record.score)} of {points(record.points)}", class_="worth"),
    )
    look = f"check {LOOKS.get(record.status, 'other')}"
    inside = tag("div", _evidence(record.finding), _ran(record), class_="evidence")
    return tag("details", summary_line, inside, class_=look, open=record.status in OPEN)


def _ran(record: Record) -> Html | None:
    """How often ranks were started for it, and how long it took."""
    if not record.worlds:
        return None
    sizes = sorted(set(record.worlds))
    ranks = "1 rank" if sizes == [1] else f"{', '.join(map(str, sizes))} ranks"
    times = "once" if len(record.worlds) == 1 else f"{len(record.worlds)} times"
    return tag("p", f"Ran {times}, on {ranks}, {record.seconds:.1f} s.", class_="soft")


# ——— what was found


def _evidence(finding: Finding) -> Html:
    compared = [(one.rank, one.compared) for one in finding.ranks if one.compared]
    said = clean("\n".join(finding.of_kind(SAID)))
    likely = finding.of_kind(LIKELY)
    return text(
        tag("p", tag("code", finding.call)) if finding.call else None,
        tag("p", clean(finding.headline), class_="headline") if finding.headline else None,
        tag("pre", said) if said else None,
        (
            text(tag("h4", "Expected and got"), tag("div", *(_pair(*one) for one in compared), class_="pair"))
            if compared
            else None
        ),
        _ranks(finding.ranks, bool(compared)) if finding.ranks else None,
        *(tag("p", clean(sentence), class_="likely") for sentence in likely),
        _traffic(finding.ranks) if len(finding.ranks) > 1 else None,
        _printed(finding.ranks),
    )


def _pair(rank: int, compared: Compared) -> Html:
    """Both values around the first place where they differ."""
    place = f" {compared.path}" if compared.path else ""
    rows = [_sides("all of it", compared.expected, compared.got, compared.expected != compared.got)]
    rows += _left_out(compared.before, "before")
    rows += [_sides(cell.place or "value", cell.expected, cell.got, cell.wrong) for cell in compared.cells]
    rows += _left_out(compared.after, "after")
    caption = f"Rank {rank}{place}" + (f": {compared.wrong}" if compared.wrong else "")
    return _table(caption, "sides", _columns("At", "Expected", "Got", "Differs"), rows)


def _sides(place: str, expected: str, got: str, wrong: bool) -> Html:
    cells = tag("td", expected), tag("td", got), tag("td", "differs" if wrong else "")
    return tag("tr", tag("th", place, scope="row"), *cells, class_="wrong" if wrong else None)


def _left_out(count: int, where: str) -> list[Html]:
    entries = "entry" if count == 1 else "entries"
    return [tag("tr", tag("td", f"… {count} {entries} {where}", colspan="4", class_="soft"))] if count else []


def _ranks(ranks: Sequence[OfRank], compared: bool) -> Html:
    def row(one: OfRank) -> Html:
        details = [tag("code", line, class_="where") for line in one.details]
        came = one.fate.startswith("returned ")
        value = ("is wrong" if one.compared else "is as expected") if compared and came else None
        return tag(
            "tr", tag("th", one.rank, scope="row"), tag("td", one.fate, f", which {value}" if value else None, *details)
        )

    return text(
        tag("h4", "Every rank"),
        _table("What became of each rank", "ranks", _columns("Rank", "What became of it"), list(map(row, ranks))),
    )


def _traffic(ranks: Sequence[OfRank]) -> Html:
    if not any(one.steps for one in ranks):
        return tag("p", "No rank communicated anything in this call.", class_="soft")
    rows = []
    for one in ranks:
        for step in one.steps:
            cells = (tag("td", f"{number:,}", class_="number") for number in (step.times, step.bytes))
            rows.append(tag("tr", tag("th", one.rank, scope="row"), tag("td", step.what), *cells))
        if one.more_steps:
            rows.append(
                tag(
                    "tr",
                    tag("th", one.rank, scope="row"),
                    tag("td", f"… {one.more_steps} other operations", colspan="3", class_="soft"),
                )
            )
        if not one.steps:
            rows.append(tag("tr", tag("th", one.rank, scope="row"), tag("td", "nothing", colspan="3", class_="soft")))
    same = len({one.sends for one in ranks}) == 1
    sends = (
        f"{ranks[0].sends:,} bytes each" if same else ", ".join(f"rank {one.rank} {one.sends:,} bytes" for one in ranks)
    )
    table = _table(
        "Operations in the order in which they were first issued",
        "traffic",
        _columns("Rank", "Operation", "Times", "Bytes"),
        rows,
    )
    note = tag("p", f"By the best algorithms these operations make the ranks send at least: {sends}.", class_="soft")
    return tag("details", tag("summary", "What each rank communicated"), table, note, class_="inner")


def _printed(ranks: Sequence[OfRank]) -> Html | None:
    blocks = []
    for one in ranks:
        if one.printed:
            before = f"… {one.printed_before} lines before\n" if one.printed_before else ""
            blocks += [tag("p", f"Rank {one.rank}", class_="soft"), tag("pre", before, "\n".join(one.printed))]
    return text(tag("h4", "Printed"), *blocks) if blocks else None
