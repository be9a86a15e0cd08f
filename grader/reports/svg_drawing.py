"""Draws ranks over time as SVG: computing, communicating, waiting.

    svg(spans(report, call), "ring_all_reduce")                one drawing
    sheet([Picture(…), Picture(…)])                            below each other, on one time axis

The functions take spans and return text. They read and write no files. An SVG needs no other file,
keeps its text as text, and follows the reader's choice of light or dark.
"""

import html
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from grader.diagnosis.finding import printable
from grader.diagnosis.spans import COMMUNICATING, COMPUTING, TIMED, WAITING, Span
from grader.reports.palette import FONT, STYLE, paint

# Widths in SVG units: of the whole drawing, of the ranks' names, and of the notes beside the lanes.
WIDTH, LEFT, RIGHT = 860, 64, 132
# LANE is the height of a rank's program. Below it, communications under way and stopwatches have
# rows of height THIN. At most MAX_THIN rows are for communications. LANE_GAP is below each lane.
LANE = 24
THIN = 6
MAX_THIN = 4
LANE_GAP = 10
MAX_SPANS_IN_FULL = 4000  # in a drawing that is not compact
# If there are more lanes than MANY, all lanes are low. If there are more ranks than MANY,
# neighbouring ranks with the same spans share a lane.
MANY = 16
LOW_LANE, LOW_GAP = 9, 2
PASSES = "forward", "backward", "weights"
LATE, BARRIER = "late", "barrier"


@dataclass(frozen=True)
class Picture:
    """The drawing of one call on all ranks.

    ``beside`` holds a note for each rank, which is shown to the right of the rank's lane. ``below``
    holds sentences that are shown under the drawing. ``compact`` is for very many spans: all spans
    of one lane and one colour are drawn as one element, and no span has a text of its own. If
    ``lacks_messages``, some sends and receives have no span.
    """

    title: str
    spans: Sequence[Span]
    beside: Sequence[str] = ()
    below: Sequence[str] = ()
    compact: bool = False
    lacks_messages: bool = False

    @property
    def ranks(self) -> list[int]:
        return sorted({span.rank for span in self.spans})


def horizon(pictures: Iterable[Picture]) -> float:
    """Return the end of the scale of time in seconds: the last time at which a span begins or ends.

    If a span has no end, the scale is a tenth longer, so that this span can be seen.
    """
    everything = [span for picture in pictures for span in picture.spans]
    last = max(
        (at for span in everything for at in (span.begin, span.end) if at is not None), default=0.0
    )
    return max(last * (1.1 if any(span.end is None for span in everything) else 1.0), 1e-6)


def svg(spans: Sequence[Span], title: str = "", below: Sequence[str] = ()) -> str:
    """Return a drawing of the spans of one call, with a legend."""
    return sheet([Picture(title, spans, (), below)])


def sheet(pictures: Sequence[Picture], title: str = "", above: Sequence[str] = ()) -> str:
    """Return several drawings below each other, on the same scale of time, with one legend.

    ``above`` holds sentences that are shown above the drawings. The legend is shown below the
    drawings.
    """
    until = horizon(pictures)
    parts: list[str] = []
    top: float = 8
    for line in (line for sentence in above for line in _wrapped(sentence)):
        parts.append(_text(4, top + 12, line, "stuck"))
        top += 20
    for picture in pictures:
        drawn, top = _picture(picture, top, until)
        parts += drawn
    drawn, top = _legend(pictures, top)
    name = _escaped(title or "; ".join(p.title for p in pictures) or "Ranks over time")
    return "\n".join(
        [
            (
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}"'
                f' width="{WIDTH}" height="{top}" font-family="{FONT}" font-size="12" role="img"'
                ' style="max-width: 100%; height: auto">'
            ),
            f"<title>{name}</title>",
            f"<style>{STYLE}</style>",
            *parts,
            *drawn,
            "</svg>\n",
        ]
    )


def _picture(picture: Picture, top: float, until: float) -> tuple[list[str], float]:
    """Return the elements of one drawing, and the y at which the next drawing may begin."""
    scale = (WIDTH - LEFT - RIGHT) / until
    parts = []
    if picture.title:
        parts.append(_text(4, top + 13, picture.title, "bold", 14))
        top += 24
    shown = list(picture.spans if picture.compact else picture.spans[:MAX_SPANS_IN_FULL])
    left_out = len(picture.spans) - len(shown)
    lanes = _lanes(shown, picture.ranks)
    lane, gap, size = (LANE, LANE_GAP, 12) if len(lanes) <= MANY else (LOW_LANE, LOW_GAP, 9)
    axis = top
    for name, index, own in lanes:
        parts.append(_text(4, top + lane / 2 + size / 3, name, size=size))
        if index < len(picture.beside):
            parts.append(
                _text(
                    WIDTH - RIGHT + 8,
                    top + lane / 2 + size / 3,
                    picture.beside[index],
                    size=min(size, 11),
                )
            )
        program = [span for span in own if not span.background]
        parts += (
            _compact(program, top, lane, scale, until)
            if picture.compact
            else [_bar(s, top, lane, scale, until) for s in program]
        )
        top += lane
        below = rows([span for span in own if span.kind == TIMED], 1)
        below += rows([span for span in own if span.background and span.kind != TIMED], MAX_THIN)
        for row in below:
            parts += [_bar(s, top + 1, THIN - 1, scale, until) for s in row]
            top += THIN
        for span in own:
            if span.end is None and not span.background and span.kind == WAITING:
                parts.append(_text(LEFT, top + 13, standing(span), "stuck", 11))
                top += 16
        top += gap
    parts = _axis(axis, top - gap + 4, scale, until) + parts
    top += 18
    sentences = [*picture.below] + (
        [f"({left_out} more spans are not drawn.)"] if left_out > 0 else []
    )
    for line in (line for sentence in sentences for line in _wrapped(sentence)):
        indent = len(line) - len(line.lstrip())
        parts.append(_text(4 + 5 * indent, top + 12, line.strip(), size=11))
        top += 16
    return parts, top + 14


def _lanes(spans: Sequence[Span], ranks: Sequence[int]) -> list[tuple[str, int, list[Span]]]:
    """Return for each lane its name, the index of its (first) rank, and its spans.

    If there are more than MANY ranks, neighbouring ranks with the same spans share a lane.
    """
    of: dict[int, list[Span]] = {rank: [] for rank in ranks}
    for span in spans:
        of[span.rank].append(span)
    lanes: list[tuple[str, int, list[Span]]] = []
    before: list[tuple] | None = None
    for index, rank in enumerate(ranks):
        did = [
            (work(span), round(span.begin, 12), span.end and round(span.end, 12), span.awaits)
            for span in of[rank]
        ]
        if len(ranks) > MANY and did == before:
            _, first, own = lanes.pop()
            lanes.append((f"{ranks[first]} to {rank}", first, own))
        else:
            lanes.append((f"rank {rank}", index, of[rank]))
        before = did
    return lanes


def standing(span: Span) -> str:
    """Return text that says where a rank waits for ever, and for which ranks."""
    # A barrier that no line of student code calls is the grader's own.
    if (
        span.operation is not None
        and span.operation.kind == "barrier"
        and span.operation.file is None
    ):
        return "has reached the end of the call, and waits for the other ranks"
    whom = (
        f", for rank{'s' * (len(span.awaits) > 1)} {', '.join(map(str, span.awaits))}"
        if span.awaits
        else ""
    )
    return f"waits{f' at {span.where}' if span.where else ''}: {span.label}{whom}"


def described(span: Span) -> str:
    """Return the text of the tooltip of a span's bar."""
    lasted = "not ended" if span.end is None else f"{(span.end - span.begin) * 1e3:.2f} ms"
    under_way = (
        ", in the background while the program goes on"
        if span.background and span.kind != TIMED
        else ""
    )
    detail = f" at {span.where}" if span.where else ""
    return (
        f"rank {span.rank} {work(span) if work(span) == LATE else span.kind}{under_way}:"
        f" {span.label or 'its own program'}{detail}, {lasted}"
    )


def work(span: Span) -> str:
    """Return the kind of work that a span's colour shows.

    This is the kind of a pass, ``LATE``, ``BARRIER``, or otherwise the span's own kind.
    """
    word = span.label.partition(" ")[0]
    if (
        span.kind == COMMUNICATING
        and span.operation is not None
        and span.operation.kind == "barrier"
    ):
        return BARRIER
    return word if span.kind == COMPUTING and word in (*PASSES, LATE) else span.kind


def _bar(span: Span, top: float, height: float, scale: float, until: float) -> str:
    begin = min(max(span.begin, 0.0), until)
    end = until if span.end is None else min(max(span.end, begin), until)
    left, width = LEFT + begin * scale, max((end - begin) * scale, 0.6)
    place = f'x="{left:.2f}" y="{top:g}" width="{width:.2f}" height="{height:g}"'
    rect = f"<rect {place} {_appearance(work(span))}/>"
    if span.end is None:
        rect += f"<rect {place} {_painted('frame')}/>"
        if not span.background:
            x, y = WIDTH - RIGHT, top + height / 2
            rect += f'<path d="M {x + 2} {y - 6} l 8 6 l -8 6 z" {_painted("stuck")}/>'
    if (
        height > LOW_LANE
        and span.micro_batch is not None
        and span.kind == COMPUTING
        and width > 7 * len(str(span.micro_batch)) + 2
    ):
        rect += _text(
            left + width / 2, top + height / 2 + 4, str(span.micro_batch), "on", 11, middle=True
        )
    return f"<g><title>{_escaped(described(span))}</title>{rect}</g>"


def _compact(
    spans: Sequence[Span], top: float, height: float, scale: float, until: float
) -> list[str]:
    """Return the elements of one lane: a thick line for each colour, over one rectangle.

    The rectangle has the colour of waiting, and can be seen where there is no line. A span that has
    not ended gets a bar of its own.
    """
    ended = [(span, span.end) for span in spans if span.end is not None]
    parts = [_bar(span, top, height, scale, until) for span in spans if span.end is None]
    if ended:
        (first, _), (_, last_end) = ended[0], ended[-1]
        left, right = LEFT + first.begin * scale, LEFT + last_end * scale
        parts.append(
            f'<rect x="{left:.1f}" y="{top:g}" width="{right - left:.1f}" height="{height:g}"'
            f' {_painted("idle")}/>'
        )
    pieces: dict[str, list[str]] = {}
    for span, end in ended:
        if work(span) != WAITING:
            begin, wide = LEFT + span.begin * scale, (end - span.begin) * scale
            pieces.setdefault(work(span), []).append(
                f"M{begin:.2f} {top + height / 2:g}h{wide:.2f}"
            )
    for kind, moves in pieces.items():
        colour = paint(kind)["fill"]
        parts.append(
            f'<path d="{"".join(moves)}" fill="none" stroke="{colour}" stroke-width="{height:g}"/>'
        )
    return parts


def rows(spans: Sequence[Span], most: int | None) -> list[list[Span]]:
    """Return the spans in rows, so that the spans of one row do not overlap.

    There are at most ``most`` rows; None means no limit. If a span fits into no row and there can
    be no further row, the span goes into the last row, where it covers other spans.
    """
    found: list[list[Span]] = []
    for span in spans:
        free = [row for row in found if row[-1].end is not None and row[-1].end <= span.begin]
        if free or len(found) == most:
            (free or found)[0 if free else -1].append(span)
        else:
            found.append([span])
    return found


def ticks(until: float, most: int = 8) -> list[float]:
    """Return at most ``most`` + 1 round times, from 0 to the end of the scale, in seconds."""
    # Begin with a power of ten near until / most. Then try 2, 5, 10, … times as much.
    step = 10.0 ** (len(f"{until * 1e9 / most:.0f}") - 10)
    while until / step > most:
        step *= 2 if f"{step:.0e}"[0] in "15" else 2.5
    return [index * step for index in range(int(until / step) + 1)]


def _axis(top: float, bottom: float, scale: float, until: float) -> list[str]:
    parts = []
    for at in ticks(until):
        x = LEFT + at * scale
        parts.append(
            f'<line x1="{x:.2f}" y1="{top:g}" x2="{x:.2f}" y2="{bottom:g}" {_painted("faint")}/>'
        )
        parts.append(_text(x, bottom + 12, f"{at * 1e3:g}" + (" ms" if at == 0 else ""), size=11))
    return parts


LEGEND = {
    "forward": "forward",
    "backward": "backward",
    "weights": "gradients of the weights",
    COMPUTING: "computing",
    LATE: "delayed by the grader",
    COMMUNICATING: "communicating",
    BARRIER: "barrier",
    WAITING: "waiting for another rank",
    TIMED: "a stopwatch runs",
}


def meaning(kind: str, there: set[str]) -> str:
    """Return what a colour means in a drawing in which the colours ``there`` occur."""
    return "computing anything else" if kind == COMPUTING and there & set(PASSES) else LEGEND[kind]


def _legend(pictures: Sequence[Picture], top: float) -> tuple[list[str], float]:
    there = {work(span) for picture in pictures for span in picture.spans}
    entries = [
        (kind, meaning(kind, there), 2 if kind == TIMED else 11) for kind in LEGEND if kind in there
    ]
    if any(
        span.background and span.kind == COMMUNICATING
        for picture in pictures
        for span in picture.spans
    ):
        entries.append((COMMUNICATING, "communicating while the program goes on", THIN - 1))
    parts, x = [], 4.0
    for kind, name, height in entries:
        wide = 24 + 6.2 * len(name) + 18
        if x + wide > WIDTH and x > 4:
            x, top = 4.0, top + 18
        place = f'x="{x:g}" y="{top + (11 - height) / 2:g}" width="18" height="{height}"'
        parts.append(f"<rect {place} {_appearance(kind)}/>")
        parts.append(_text(x + 24, top + 10, name, size=11))
        x += wide
    return parts, top + 22


def _appearance(kind: str) -> str:
    """Return the SVG attributes of a rectangle for spans of this kind of work."""
    return _painted({WAITING: "idle", LATE: "empty", TIMED: "head"}.get(kind, kind))


def _painted(kind: str) -> str:
    return " ".join(f'{name}="{value}"' for name, value in paint(kind).items())


def _text(
    x: float, y: float, text: str, kind: str = "text", size: int = 12, middle: bool = False
) -> str:
    attributes = f'x="{x:.2f}" y="{y:g}"' + (f' font-size="{size}"' if size != 12 else "")
    attributes += ' text-anchor="middle"' if middle else ""
    return f"<text {attributes} {_painted(kind)}>{_escaped(text)}</text>"


def _escaped(text: str) -> str:
    """Return the text in the form that an SVG may contain: escaped, with no control characters."""
    return html.escape(printable(text))


def _wrapped(sentence: str, most: int = 140) -> list[str]:
    indent = sentence[: len(sentence) - len(sentence.lstrip())]
    return textwrap.wrap(sentence, most, subsequent_indent=indent and f"{indent}    ") or [""]
