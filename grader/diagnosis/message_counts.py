"""Explains why a receive gets no message, or why no rank receives a message.

There are two causes. Two ranks start different numbers of sends and receives for each other. Or an
earlier receive of the waiting rank took the message.
"""

from collections.abc import Callable

from grader.diagnosis.finding import Line, likely_line
from grader.wire.agreement import Waiting
from grader.wire.events import Operation
from grader.wire.lanes import destination_of, lane_of
from grader.wire.matches import Match
from grader.world.report import WorldReport

MAX_PLACES = 4  # lines of code that a sentence lists
ANY_SOURCE = "A receive without src takes the first message that arrives, from any rank."


def taken_by_any_source(report: WorldReport, waiting: list[Waiting]) -> list[Line]:
    """Return a line about a receive without src that took the message of another receive.

    Return [] if there is no such receive. Also return [] if no other send to this rank, in the same
    group and with the same tag, is still waiting. Then the receive without src had no other message
    to take. It may be right, and a send may be missing.
    """
    sends = [w.operation for w in waiting if w.operation.kind == "send"]
    left = {destination_of(send) for send in sends}
    for found in waiting:
        waits = found.operation
        if waits.kind != "recv" or waits.peer is None or destination_of(waits) not in left:
            continue
        pairs = [
            pair
            for pair in earlier_pairs(report, waits)
            if pair.is_certain and pair.operations[1].peer is None
        ]
        if pairs:
            send, taker = pairs[-1].operations
            place = _places_in(report, waits.call)
            return [
                likely_line(
                    f"rank {waits.rank}'s receive without src ({place([taker])}) took a message"
                    f" from rank {send.rank} ({place([send])}). So the receive from rank"
                    f" {send.rank} ({place([waits])}) gets no message.",
                    f"{ANY_SOURCE} Give each receive its src, as in dist.recv(tensor, src).",
                )
            ]
    return []


def unequal_counts(report: WorldReport, waiting: list[Waiting], waits: Operation) -> list[Line]:
    """Return a line that counts the sends and receives between a rank that waits and its peer.

    ``waits`` is an open operation of a rank whose peer has returned. Return [] if ``waits`` is a
    collective. Also return [] if the two ranks have exchanged no message. Then the peer has left
    out its side altogether, and the numbers do not help.
    """
    pairs = earlier_pairs(report, waits) if waits.kind in ("send", "recv") else []
    if not pairs:
        return []
    sends, receives = ([pair.operations[side] for pair in pairs] for side in (0, 1))
    own, others = (sends, receives) if waits.kind == "send" else (receives, sends)
    open_ones = [
        w.operation
        for w in waiting
        if (w.operation.kind, w.operation.call) == (waits.kind, waits.call)
        and lane_of(w.operation) == lane_of(waits)
    ]
    # An operation of this call may have been matched with an operation of another call. Then count
    # only the operations of this call.
    of_call = [[o for o in side if o.call == waits.call] for side in (own, others)]
    if of_call[1] and len(of_call[0]) + len(open_ones) > len(of_call[1]):
        own, others = of_call
    place = _places_in(report, waits.call)
    started, got = place([*own, *open_ones]), place(others)
    count, rank, peer = len(own) + len(open_ones), waits.rank, waits.peer
    if waits.kind == "send":
        sentence = (
            f"rank {rank} started {count} sends to rank {peer} ({started}), but rank {peer} started"
            f" only {_counted(len(others), 'receive')} from rank {rank} ({got}) before the"
            f" function of rank {peer} returned."
        )
    elif peer is None:
        sentence = (
            f"rank {rank} started {count} receives ({started}), but the other ranks sent only"
            f" {_counted(len(others), 'message')} to rank {rank} ({got})."
        )
    else:
        sentence = (
            f"rank {rank} started {count} receives from rank {peer} ({started}), but rank {peer}"
            f" sent only {_counted(len(others), 'message')} to rank {rank} ({got}) before the"
            f" function of rank {peer} returned."
        )
    if not all(pair.is_certain for pair in pairs):
        return [likely_line(sentence)]
    return [likely_line(sentence, _next_step(waits, own, open_ones, place))]


def _next_step(
    waits: Operation,
    own: list[Operation],
    open_ones: list[Operation],
    place: Callable[[list[Operation]], str],
) -> str:
    """Return advice for the message of ``unequal_counts``: what to look for in the program."""
    how = " without src" if waits.kind == "recv" and all(o.peer is None for o in own) else ""
    lacks = "send" if waits.kind == "recv" else "receive"
    mend = f"Remove the {waits.name} that is not needed, or add the missing {lacks}."
    if not own:
        return mend
    if {(o.file, o.line) for o in own} & {(o.file, o.line) for o in open_ones}:
        if waits.peer is None:
            return f"Does a loop on rank {waits.rank} run too often?"
        return f"Does a loop run more often on rank {waits.rank} than on rank {waits.peer}?"
    kind = waits.name
    done = "got the message" if waits.kind == "recv" else "was matched"
    if len(own) > 1:
        kind, done = f"{kind}s", done.replace("the message", "the messages").replace("was", "were")
    text = f"Messages arrive in the order of the sends. So the earlier {kind}{how} ({place(own)})"
    return f"{text} {done}. {mend}"


def earlier_pairs(report: WorldReport, waits: Operation) -> list[Match]:
    """Return the pairs of a send and its receive that were matched on the same lane as ``waits``.

    They have the same source, target, group and tag as ``waits``. If ``waits`` receives from any
    rank, the source may differ. At least one operation of a pair belongs to the call of ``waits``.
    """
    lane = lane_of(waits)
    return [
        found
        for found in report.matching().messages
        if not found.absent
        and any(operation.call == waits.call for operation in found.operations)
        and destination_of(found.operations[0]) == lane.destination
        and lane.source in (None, found.operations[0].rank)
    ]


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _places_in(report: WorldReport, call: int) -> Callable[[list[Operation]], str]:
    """Return a function that lists the lines of operations, as in "lines 9 and 11".

    The file is named only if it is not the file of the function that was called.
    """
    usual = f"{report.calls[call].function.partition('.')[0]}.py"

    def places(operations: list[Operation]) -> str:
        if all(operation.file == usual for operation in operations):
            lines = _listed(sorted({str(o.line) for o in operations}, key=int))
            return f"line{'s' * (not lines.isdigit())} {lines}"
        return _listed(list(dict.fromkeys(operation.where for operation in operations)))

    return places


def _listed(places: list[str]) -> str:
    if len(places) > MAX_PLACES:
        return f"{', '.join(places[:MAX_PLACES])}, …"
    *most, last = places
    return f"{', '.join(most)} and {last}" if most else last
