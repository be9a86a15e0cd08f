"""Ranks over time as text for a terminal: readable without colour, and at 80 columns. Spans in, text out.

A column is a moment. A forward pass is the last digit of its micro-batch, a backward pass the letter in the same place of the
alphabet (a for 0), as in ``handout/timeline.py``.
"""

from collections.abc import Sequence

from rich.text import Text

from grader.evidence.spans import COMMUNICATING, COMPUTING, TIMED, WAITING, Span
from grader.palette import BLOCKS, TEXT
from grader.reports.drawing import BARRIER, LATE, LEGEND, PASSES, Picture, horizon, meaning, standing, ticks, work

SIGNS = {
    COMPUTING: "#",
    COMMUNICATING: "=",
    WAITING: "·",
    "forward": "F",
    "backward": "B",
    LATE: "z",
    BARRIER: "!",
    TIMED: "[ ]",
}
STYLES = {kind: colour.terminal for kind, colour in BLOCKS.items()} | {
    WAITING: "dim",
    LATE: "dim",
    TIMED: "bold",
    "under way": BLOCKS[COMMUNICATING].terminal,
    "stuck": TEXT["bad"].terminal,
}
LEFT = 9  # columns for the name of a rank


def text(pictures: Sequence[Picture], width: int) -> list[Text]:
    """Drawings of ``width`` columns each, on the same scale of time."""
    beside = max((len(note) for picture in pictures for note in picture.beside), default=-1) + 1
    room = max(width - LEFT - 1 - beside, 16)
    return [_drawn(picture, width, room, horizon(pictures)) for picture in pictures]


def _drawn(picture: Picture, width: int, room: int, until: float) -> Text:
    lines = [Text(picture.title, "bold")] if picture.title else []
    for index, rank in enumerate(picture.ranks):
        own = [span for span in picture.spans if span.rank == rank]
        program, timed = [s for s in own if not s.background], [s for s in own if s.kind == TIMED]
        background = [s for s in own if s.background and s.kind != TIMED]
        stuck = [s for s in program if s.end is None]
        edge = Text(">", STYLES["stuck"]) if stuck else Text("|")
        note = picture.beside[index] if index < len(picture.beside) else ""
        lines.append(
            Text.assemble(
                f"rank {rank}".ljust(LEFT - 1), "|", _row(program, room, until), edge, f" {note}" * bool(note)
            )
        )
        if timed:
            lines.append(Text.assemble(" " * LEFT, _watched(timed, room, until)))
        if background:
            lines.append(Text.assemble(" " * LEFT, _under_way(background, room, until)))
        lines += [
            Text(f"{'':{LEFT}}{line}", "red") for s in stuck if s.kind == WAITING for line in _cut(s, width - LEFT)
        ]
    lines.append(_scale(room, until))
    return Text("\n").join(lines)


def _cut(span: Span, width: int) -> list[str]:
    where, _, what = standing(span).partition(": ")
    lines = [where, f"  {what}"] if what else [where]
    return [line if len(line) <= width else f"{line[: width - 1]}…" for line in lines]


def _cells(span: Span, room: int, until: float) -> range:
    begin = min(max(span.begin, 0.0), until)
    end = until if span.end is None else min(max(span.end, begin), until)
    first = min(round(begin / until * room), room - 1)
    return range(first, max(round(end / until * room), first + (end > begin)))


def _row(spans: Sequence[Span], room: int, until: float) -> Text:
    """A column shows what took the most of it."""
    share: list[dict[tuple[str, str], float]] = [{} for _ in range(room)]
    for span in spans:
        key = sign(span), "stuck" if span.end is None else work(span)
        begin, end = (
            max(span.begin, 0.0) * room / until,
            min(until if span.end is None else span.end, until) * room / until,
        )
        for column in range(max(int(begin), 0), min(int(end) + 1, room)):
            covered = min(end, column + 1) - max(begin, column)
            if covered > 0:
                share[column][key] = share[column].get(key, 0.0) + covered
    row = Text()
    for cell in share:
        most, style = max(cell, key=lambda key: cell[key]) if sum(cell.values()) >= 0.5 else (" ", "")
        row.append(most, STYLES.get(style, ""))
    return row


def sign(span: Span) -> str:
    if span.micro_batch is None or work(span) not in PASSES:
        return SIGNS[work(span)]
    return str(span.micro_batch % 10) if work(span) == "forward" else chr(ord("a") + span.micro_batch % 26)


def _under_way(spans: Sequence[Span], room: int, until: float) -> Text:
    cells = [" "] * room
    for span in spans:
        for column in _cells(span, room, until):
            cells[column] = "-"
    return Text("".join(cells), STYLES["under way"])


def _watched(spans: Sequence[Span], room: int, until: float) -> Text:
    """Brackets from where a watch starts to where it stops."""
    cells = [" "] * room
    for span in spans:
        columns = _cells(span, room, until)
        for column in columns:
            cells[column] = "[" if column == columns[0] else "]" if column == columns[-1] else "_"
    return Text("".join(cells), STYLES[TIMED])


def _scale(room: int, until: float) -> Text:
    """Round times below the columns that they are at."""
    cells = [" "] * (room + LEFT + 1)
    times = ticks(until, max(room // 12, 2))
    for at in times:
        word = f"{at * 1e3:g}" + (" ms" if at == times[-1] else "")
        first = min(LEFT + round(at / until * room), LEFT + room + 1 - len(word))
        if not "".join(cells[first - 1 : first + len(word) + 1]).strip():
            cells[first : first + len(word)] = word
    return Text("".join(cells).rstrip(), "dim")


def legend(pictures: Sequence[Picture], width: int) -> Text:
    """What the signs mean that occur; a line ends between two of them."""
    spans = [span for picture in pictures for span in picture.spans]
    there = {work(span) for span in spans if not span.background or span.kind == TIMED}
    numbered = {work(span) for span in spans if span.micro_batch is not None}
    parts = []
    for kind in LEGEND:
        if kind in there:
            signs = SIGNS[kind]
            if kind in PASSES and kind in numbered:
                signs = "0 1 2 …" if kind == "forward" else "a b c …"
            of_what = " of micro-batch 0, 1, 2, …" if kind in PASSES and kind in numbered else ""
            parts.append(Text.assemble((signs, STYLES[kind]), f" {meaning(kind, there)}{of_what}"))
    if any(span.background and span.kind == COMMUNICATING for span in spans):
        parts.append(Text.assemble(("-", STYLES["under way"]), " communicating while the program goes on"))
    if any(span.end is None for span in spans):
        parts.append(Text.assemble((">", STYLES["stuck"]), " stands still"))
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + 3 + part.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], "   ", part)
        else:
            lines.append(part)
    return Text("\n").join(lines)
