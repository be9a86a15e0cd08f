"""Draws ranks over time as text for a terminal.

The functions take spans and return text. The text can be read without colour and at 80 columns. A
column is a short period of time. A forward pass is shown as the last digit of its micro-batch's
number. A backward pass is shown as a letter: a for micro-batch 0, b for micro-batch 1, and so on.
If the gradients of the weights are computed separately, they are shown as capital letters.
``handout/timeline.py`` uses the same signs. If most passes are shorter than three quarters of a
column, the signs are F, B and W instead.
"""

from collections.abc import Sequence

from rich.text import Text

from grader.diagnosis.spans import COMMUNICATING, COMPUTING, TIMED, WAITING, Span
from grader.reports.palette import BLOCKS, TEXT
from grader.reports.svg_drawing import (
    BARRIER,
    LATE,
    LEGEND,
    PASSES,
    Picture,
    horizon,
    meaning,
    standing,
    ticks,
    work,
)

SIGNS = {
    COMPUTING: "#",
    COMMUNICATING: "=",
    WAITING: "·",
    "forward": "F",
    "backward": "B",
    "weights": "W",
    LATE: "z",
    BARRIER: "!",
    TIMED: "[ ]",
}
NUMBERED = {"forward": "0 1 2 …", "backward": "a b c …", "weights": "A B C …"}
SPAN_STYLES = {kind: colour.terminal for kind, colour in BLOCKS.items()} | {
    WAITING: "dim",
    LATE: "dim",
    TIMED: "bold",
    "under way": BLOCKS[COMMUNICATING].terminal,
    "stuck": TEXT["bad"].terminal,
}
LEFT = 9  # columns for the name of a rank
# With at most this many ranks, each rank has a lane of its own, even if lanes are alike.
MAX_LANES_OF_THEIR_OWN = 4
MAX_LANES = 16  # of one drawing


def text(pictures: Sequence[Picture], width: int) -> list[Text]:
    """Return one drawing for each picture, all ``width`` columns wide and on one scale of time."""
    room, until = _room(pictures, width), horizon(pictures)
    return [
        _drawn(picture, width, room, until, _are_legible(pictures, width)) for picture in pictures
    ]


def _room(pictures: Sequence[Picture], width: int) -> int:
    """Return how many columns a lane has: at least 16."""
    beside = max((len(note) for picture in pictures for note in picture.beside), default=-1) + 1
    return max(width - LEFT - 1 - beside, 16)


def _are_legible(pictures: Sequence[Picture], width: int) -> bool:
    """Return whether most passes are wide enough for their numbers, or there are no passes."""
    column = horizon(pictures) / _room(pictures, width)
    passes = sorted(
        s.end - s.begin for p in pictures for s in p.spans if s.end is not None and _has_number(s)
    )
    return not passes or passes[len(passes) // 2] > 0.75 * column


def _drawn(picture: Picture, width: int, room: int, until: float, numbered: bool) -> Text:
    lines = [Text(picture.title, "bold")] if picture.title else []
    # Each entry: neighbouring ranks that are drawn alike, and the lines of their lane.
    lanes: list[tuple[list[int], list[Text]]] = []
    for index, rank in enumerate(picture.ranks):
        own = [span for span in picture.spans if span.rank == rank]
        note = picture.beside[index] if index < len(picture.beside) else ""
        drawn = _lane(own, note, width, room, until, numbered)
        alike = (
            lanes
            and len(picture.ranks) > MAX_LANES_OF_THEIR_OWN
            and [line.plain for line in drawn] == [line.plain for line in lanes[-1][1]]
        )
        if alike:
            lanes[-1][0].append(rank)
        else:
            lanes.append(([rank], drawn))
    shown = _chosen(lanes)
    for ranks, (first, *more) in shown:
        name = f"rank {ranks[0]}" if len(ranks) == 1 else f"{ranks[0]} to {ranks[-1]}"
        lines += [Text.assemble(name.ljust(LEFT - 1), first), *more]
    lines.append(_scale(room, until))
    if len(shown) < len(lanes):
        lines.append(
            Text(f"({len(shown)} of {len(lanes)} lanes; timeline.svg has all ranks.)", "dim")
        )
    return Text("\n").join(lines)


def _chosen(lanes: list) -> list:
    """Return at most MAX_LANES lanes, evenly spread, with the first and the last among them."""
    if len(lanes) <= MAX_LANES:
        return lanes
    return [lanes[round(row * (len(lanes) - 1) / (MAX_LANES - 1))] for row in range(MAX_LANES)]


def _lane(
    own: Sequence[Span], note: str, width: int, room: int, until: float, numbered: bool
) -> list[Text]:
    """Return the lines of one rank. The first line is its program, with ``note`` beside it.

    Further lines follow only if they have something to show: when a stopwatch ran, when
    communications were under way while the program did other work, and where the rank waits for
    ever.
    """
    program, timed = [s for s in own if not s.background], [s for s in own if s.kind == TIMED]
    background = [s for s in own if s.background and s.kind != TIMED]
    stuck = [s for s in program if s.end is None]
    edge = Text(">", SPAN_STYLES["stuck"]) if stuck else Text("|")
    lines = [
        Text.assemble("|", _row(program, room, until, numbered), edge, f" {note}" * bool(note))
    ]
    if timed:
        lines.append(Text.assemble(" " * LEFT, _watched(timed, room, until)))
    if background:
        lines.append(Text.assemble(" " * LEFT, _under_way(background, room, until)))
    waits = [line for s in stuck if s.kind == WAITING for line in _cut(s, width - LEFT)]
    return lines + [Text(f"{'':{LEFT}}{line}", "red") for line in waits]


def _cut(span: Span, width: int) -> list[str]:
    where, _, what = standing(span).partition(": ")
    lines = [where, f"  {what}"] if what else [where]
    return [line if len(line) <= width else f"{line[: width - 1]}…" for line in lines]


def _cells(span: Span, room: int, until: float) -> range:
    begin = min(max(span.begin, 0.0), until)
    end = until if span.end is None else min(max(span.end, begin), until)
    first = min(round(begin / until * room), room - 1)
    return range(first, max(round(end / until * room), first + (end > begin)))


def _row(spans: Sequence[Span], room: int, until: float, numbered: bool) -> Text:
    """Return the lane of a rank's program. Each column shows the work that took most of its time.

    A column stays blank if spans cover less than half of it.
    """
    share: list[dict[tuple[str, str], float]] = [{} for _ in range(room)]
    for span in spans:
        key = sign(span, numbered), "stuck" if span.end is None else work(span)
        begin = max(span.begin, 0.0) * room / until
        end = min(until if span.end is None else span.end, until) * room / until
        for column in range(max(int(begin), 0), min(int(end) + 1, room)):
            covered = min(end, column + 1) - max(begin, column)
            if covered > 0:
                share[column][key] = share[column].get(key, 0.0) + covered
    row = Text()
    for cell in share:
        most, style = (
            max(cell, key=lambda key: cell[key]) if sum(cell.values()) >= 0.5 else (" ", "")
        )
        row.append(most, SPAN_STYLES.get(style, ""))
    return row


def _has_number(span: Span) -> bool:
    return span.micro_batch is not None and work(span) in PASSES


def sign(span: Span, numbered: bool = True) -> str:
    number = span.micro_batch
    if number is None or not (numbered and _has_number(span)):
        return SIGNS[work(span)]
    if work(span) == "forward":
        return str(number % 10)
    return chr(ord("a" if work(span) == "backward" else "A") + number % 26)


def _under_way(spans: Sequence[Span], room: int, until: float) -> Text:
    cells = [" "] * room
    for span in spans:
        for column in _cells(span, room, until):
            cells[column] = "-"
    return Text("".join(cells), SPAN_STYLES["under way"])


def _watched(spans: Sequence[Span], room: int, until: float) -> Text:
    """Return a line with a bracket where each stopwatch starts and one where it stops."""
    cells = [" "] * room
    for span in spans:
        columns = _cells(span, room, until)
        for column in columns:
            cells[column] = "[" if column == columns[0] else "]" if column == columns[-1] else "_"
    return Text("".join(cells), SPAN_STYLES[TIMED])


def _scale(room: int, until: float) -> Text:
    """Return a line of round times, each below its column.

    Leave out a time that would touch another time.
    """
    cells = [" "] * (room + LEFT + 1)
    times = ticks(until, max(room // 12, 2))
    for at in times:
        word = f"{at * 1e3:g}" + (" ms" if at == times[-1] else "")
        first = min(LEFT + round(at / until * room), LEFT + room + 1 - len(word))
        if not "".join(cells[first - 1 : first + len(word) + 1]).strip():
            cells[first : first + len(word)] = word
    return Text("".join(cells).rstrip(), "dim")


def legend(pictures: Sequence[Picture], width: int) -> Text:
    """Return the meanings of the signs that occur. A line ends only between two meanings."""
    spans = [span for picture in pictures for span in picture.spans]
    there = {work(span) for span in spans if not span.background or span.kind == TIMED}
    numbered = (
        {work(span) for span in spans if _has_number(span)}
        if _are_legible(pictures, width)
        else set()
    )
    parts = []
    for kind in LEGEND:
        if kind in there:
            signs = SIGNS[kind]
            if kind in PASSES and kind in numbered:
                signs = NUMBERED[kind]
            of_what = " of micro-batch 0, 1, 2, …" if kind in PASSES and kind in numbered else ""
            parts.append(
                Text.assemble((signs, SPAN_STYLES[kind]), f" {meaning(kind, there)}{of_what}")
            )
    if any(span.background and span.kind == COMMUNICATING for span in spans):
        parts.append(
            Text.assemble(
                ("-", SPAN_STYLES["under way"]), " communicating while the program goes on"
            )
        )
    if any(span.end is None for span in spans):
        parts.append(Text.assemble((">", SPAN_STYLES["stuck"]), " never ends"))
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + 3 + part.cell_len <= width:
            lines[-1] = Text.assemble(lines[-1], "   ", part)
        else:
            lines.append(part)
    return Text("\n").join(lines)
