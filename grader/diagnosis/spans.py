"""Says what each rank did in one call, and when: computing, communicating, or waiting for a rank.

The module computes the spans from the trails and the outcomes of the ranks. If the world was asked
to trace waits (``World(…, trace=True)``), the spans show what happened. Otherwise they are
estimated: see ``times_in_calls.estimated``.

If a call makes several runs (marked ``run 0 began``, ``run 0 ended``, …), only the fastest run is
drawn. If the call did not return on every rank, only the last run that all ranks began is drawn.
Times are seconds from the moment at which the first rank began the drawn run.
"""

import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace

from grader.diagnosis.pieces_of_work import NO_PIECE, PIECE, Piece, pass_mark
from grader.diagnosis.times_in_calls import TimeInCall, estimated, traced
from grader.wire.events import COMPLETED, WAIT_ENDED, Mark, Operation, Progress, operations
from grader.wire.matches import Matches
from grader.world.report import Raised, Returned, WorldReport

COMPUTING, COMMUNICATING, WAITING, TIMED = "computing", "communicating", "waiting", "timed"
ON_CORE = re.compile(r"(\d{1,18}) ns on a core")
MAX_RUNS = 16  # runs in a call


@dataclass(frozen=True)
class Span:
    """An activity of one rank from ``begin`` to ``end``, in seconds.

    ``end`` is None if the activity was still going on when the world was ended. ``background`` is
    True for two kinds of spans: a communication that goes on while the rank's program does other
    work, and the time that a stopwatch measures. The other spans of a rank do not overlap.
    """

    rank: int
    kind: str  # computing, communicating, waiting or timed
    label: str
    begin: float
    end: float | None
    micro_batch: int | None = None
    background: bool = False
    where: str = ""  # file:line
    operation: Operation | None = None
    awaits: tuple[int, ...] = ()  # the ranks that never joined the operation


# A cut: a time in nanoseconds, and the piece of work that the rank does from this time on.
_Cut = tuple[int, Piece]


def spans(report: WorldReport, call: int) -> list[Span]:
    """Return all spans of a call, rank by rank, in the order in which they begin.

    The background spans of a rank come after its other spans.
    """
    is_traced = any(isinstance(event, Progress) for trail in report.trails for event in trail)
    came = _came(report.matching())
    absent = {w.operation.key: tuple(w.absent) for w in report.waiting()}
    begins, ends = _bounds(report, call)
    if not begins:
        return []
    zero, received = min(begins.values()), _received(report) if is_traced else {}
    last = {rank: 1 << 63 if end is None else end for rank, end in ends.items()}
    found: list[Span] = []
    for rank, begin in begins.items():
        trail = [
            event
            for event in report.ranks[rank].trail
            if event.call == call and begin <= event.at <= last[rank]
        ]
        in_calls = (
            traced(trail, ends[rank]) if is_traced else estimated(trail, came, absent, ends[rank])
        )
        found += _program(rank, _cuts(trail), begin, ends[rank], in_calls, came, absent)
        found += _background(trail, in_calls, received, absent, ends[rank]) if is_traced else []
        found += _timed(trail)
    scaled = [_scaled(span, zero) for span in found]
    return sorted(scaled, key=lambda span: (span.rank, span.background, span.begin))


def on_core(report: WorldReport, call: int) -> list[float]:
    """Return, for each rank, how many seconds its program ran on a core during the drawn run.

    If a rank's trail does not contain this time, the list has no entry for the rank.
    """
    begins, ends = _bounds(report, call)
    said = [
        ON_CORE.fullmatch(event.name)
        for rank, begin in begins.items()
        for event in report.ranks[rank].trail
        if isinstance(event, Mark) and event.call == call and begin <= event.at <= (ends[rank] or 0)
    ]
    return [int(found[1]) / 1e9 for found in said if found]


def _scaled(span: Span, zero: int) -> Span:
    end = None if span.end is None else (span.end - zero) / 1e9
    return Span(**(vars(span) | {"begin": (span.begin - zero) / 1e9, "end": end}))


# ——— when a call began and ended on a rank


def _bounds(report: WorldReport, call: int) -> tuple[dict[int, int], dict[int, int | None]]:
    """Return two maps from ranks to times: when the drawn run began, and when it ended.

    The times are in nanoseconds. A rank that never began the run is in neither map. If the run
    never ended on a rank, the second map has None for this rank. An exception also ends a run. If
    there is no run that all ranks began, the whole call is drawn.
    """
    marks = [
        {event.name: event.at for event in trail if isinstance(event, Mark) and event.call == call}
        for trail in report.trails
    ]
    begun = [
        number
        for number in range(MAX_RUNS)
        if all(f"run {number} began" in passed for passed in marks)
    ]
    ended = [number for number in begun if all(f"run {number} ended" in passed for passed in marks)]
    outcomes = [rank.outcomes.get(call) for rank in report.ranks]
    name = "call"
    if begun:

        def duration(number: int) -> int:
            return max(p[f"run {number} ended"] for p in marks) - min(
                p[f"run {number} began"] for p in marks
            )

        whole = all(isinstance(outcome, Returned) for outcome in outcomes)
        name = f"run {min(ended, key=duration) if whole and ended else begun[-1]}"
    begins = {
        rank: passed[f"{name} began"]
        for rank, passed in enumerate(marks)
        if f"{name} began" in passed
    }
    raised = {
        rank: outcome.at for rank, outcome in enumerate(outcomes) if isinstance(outcome, Raised)
    }
    return begins, {rank: marks[rank].get(f"{name} ended", raised.get(rank)) for rank in begins}


# ——— when the partners of an operation joined it


def _came(matching: Matches) -> dict[tuple[int, int], int | None]:
    """Return, for each operation, the time at which the last rank joined it.

    The time is None if a rank never joined the operation.
    """
    came: dict[tuple[int, int], int | None] = {}
    for met in matching:
        last = None if met.absent else max(operation.at for operation in met.operations)
        came |= {operation.key: last for operation in met.operations}
    return came


def _received(report: WorldReport) -> dict[tuple[int, int], int]:
    """Return, for each send, the time at which its receiver's wait ended.

    From this time on, the receiver has the message. If the time is not known, the dict has no entry
    for the send.
    """
    ended = {
        (e.rank, e.of): e.at
        for trail in report.trails
        for e in trail
        if isinstance(e, Progress) and e.what == WAIT_ENDED
    }
    pairs = [met.operations for met in report.matching().messages if not met.absent]
    return {send.key: ended[receive.key] for send, receive in pairs if receive.key in ended}


# ——— spans, still in nanoseconds


def _program(
    rank: int,
    cuts: list[_Cut],
    begin: int,
    end: int | None,
    in_calls: list[TimeInCall],
    came: dict,
    absent: dict,
) -> list[Span]:
    """Return the spans of the rank's program: its waits, and the computing between them."""
    found: list[Span] = []
    at = begin
    for in_call in in_calls:
        since = max(in_call.begin, at)
        found += _computing(rank, cuts, at, since)
        found += _waited(rank, in_call, since, came, absent)
        if in_call.end is None:
            return found
        at = max(in_call.end, since)
    return found + _computing(rank, cuts, at, end if end is None else max(end, at))


def _waited(rank: int, in_call: TimeInCall, since: int, came: dict, absent: dict) -> list[Span]:
    operation = in_call.operation
    label = operation.description if operation else "a communication"
    where = in_call.where or (operation.own_line if operation else "")
    missing = absent.get(operation.key, ()) if operation else ()
    whole = Span(
        rank, WAITING, label, since, None, where=where, operation=operation, awaits=missing
    )
    if in_call.end is None:
        return [whole]
    end = max(in_call.end, since)
    if in_call.starts:
        return [replace(whole, kind=COMMUNICATING, label=f"start of {label}", end=end, awaits=())]
    last = came.get(operation.key, since) if operation else since
    met = end if last is None else min(max(last, since), end)
    parts = [replace(whole, end=met)] if met > since else []
    if end > met or not parts:
        parts.append(replace(whole, kind=COMMUNICATING, begin=met, end=end))
    return parts


def _cuts(trail: list) -> list[_Cut]:
    """Return a cut for each mark that says that a piece of work began or ended."""
    cuts: list[_Cut] = []
    inside: list[Piece] = []
    for event in trail:
        if not isinstance(event, Mark) or not pass_mark(inside, event.name):
            continue
        # The times of the cuts must be in order, because the cuts are searched by bisection.
        at = max(event.at, cuts[-1][0]) if cuts else event.at
        cuts.append((at, inside[-1] if inside else NO_PIECE))
    return cuts


def _computing(rank: int, cuts: list[_Cut], begin: int, end: int | None) -> list[Span]:
    """Return spans for the time between two waits, one span for each piece of work in it."""
    first = bisect_right(cuts, begin, key=lambda cut: cut[0])
    last = len(cuts) if end is None else bisect_left(cuts, end, key=lambda cut: cut[0])
    pieces = [(begin, cuts[first - 1][1] if first else NO_PIECE), *cuts[first:last]]
    parts = []
    for (at, (label, number)), until in zip(pieces, [*(at for at, _ in pieces[1:]), end]):
        if until is None or until > at:
            text = label if number is None else f"{label} {number}"
            parts.append(Span(rank, COMPUTING, text, at, until, number))
    return parts


def _background(
    trail: list, in_calls: list[TimeInCall], received: dict, absent: dict, end: int | None
) -> list[Span]:
    """Return the communications that ran in the background while the program did other work.

    Each span lasts from the start of a communication to its end. If the end is not known because a
    rank never took part, the span has no end. If the end is not known for another reason, the span
    ends at ``end``, the end of the drawn run on this rank.
    """
    waited = {
        in_call.operation.at: in_call
        for in_call in in_calls
        if in_call.operation and not in_call.starts
    }
    completed = {e.of: e.at for e in trail if isinstance(e, Progress) and e.what == COMPLETED}
    found = []
    for operation in operations(trail):
        in_call = waited.get(operation.at)
        # If the program waited immediately, the operation did not run in the background.
        if in_call and in_call.begin == operation.at:
            continue
        ends = [
            completed.get(operation.at),
            received.get(operation.key),
            in_call.end if in_call else None,
        ]
        known = [max(at, operation.at) for at in ends if at is not None]
        over = min(known) if known else (None if operation.key in absent else end)
        found.append(
            Span(
                *(operation.rank, COMMUNICATING, operation.description, operation.at, over),
                background=True,
                where=operation.own_line,
                operation=operation,
                awaits=absent.get(operation.key, ()),
            )
        )
    return found


def _timed(trail: list) -> list[Span]:
    """Return the spans in which the program's own stopwatch ran."""
    found, began = [], {}
    for event in trail:
        piece = PIECE.fullmatch(event.name) if isinstance(event, Mark) else None
        if not piece or piece[1] != "watch":
            continue
        number = piece[2]
        if piece[3] == "began":
            began[number] = event.at
        elif number in began:
            label = f"timed {number or ''}"
            found.append(
                Span(event.rank, TIMED, label, began.pop(number), event.at, background=True)
            )
    return found
