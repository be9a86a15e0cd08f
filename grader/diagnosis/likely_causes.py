"""Explains the likely cause if ranks wait for ever, or disagree about an operation."""

from dataclasses import replace

from grader.diagnosis.finding import Line, likely_line
from grader.diagnosis.group_order import groups_in_different_orders, in_another_group
from grader.diagnosis.message_counts import (
    ANY_SOURCE,
    earlier_pairs,
    taken_by_any_source,
    unequal_counts,
)
from grader.diagnosis.rank_summaries import rank_list
from grader.wire.agreement import ELEMENTS, MAKE_ALL, OPERATION, Disagreement, Waiting
from grader.wire.events import Operation, operations
from grader.world import stack_frames
from grader.world.report import Ending, RankReport, Returned, WorldReport

# A rank polls if it is at a line with ``is_completed``, or at most this many lines below one.
LOOP_LINES = 2
ASYNCHRONOUS = (
    "With async_op=True, a collective returns immediately. First do the rank's own work, then call"
    " wait() on the Work that the collective returned."
)
GIVE_SOURCE = (
    f"{ANY_SOURCE} Give src, as in dist.recv(tensor, src), to receive from a certain rank."
)


def likely_cause(report: WorldReport, waiting: list[Waiting], call: int) -> list[Line]:
    """Return a line about the likely cause of a hang; [] if no likely cause is known.

    ``waiting`` has the operations that lack a partner.
    """
    if words := _incomplete_group(report):
        return words
    kinds = {w.operation.kind for w in waiting}
    returned = [rank.rank for rank in report.ranks if isinstance(rank.outcomes.get(call), Returned)]
    if any(w.operation.peer == w.operation.rank for w in waiting):
        return [likely_line("a rank sends to itself, or receives from itself.")]
    if unsent := never_went_out(report, waiting, call):
        return unsent
    if again := _waits_again(report, waiting, call):
        sentence = (
            "called wait() twice on the same send or receive. The second call never returns: call"
            " wait() only once."
        )
        return [likely_line(f"{rank_list(again)} {sentence}")]
    if any(rank.held == call for rank in report.ranks):
        return [
            likely_line(
                "a rank waits for the other ranks too early. It should first go on with its own"
                " work.",
                *([ASYNCHRONOUS] if _is_synchronous_collective(report, waiting) else []),
            )
        ]
    if taken := taken_by_any_source(report, waiting):
        return taken
    missed = sorted({rank for w in waiting for rank in w.absent} & set(returned))
    if missed:
        first = next(w for w in waiting if set(w.absent) & set(missed))
        operation, missed = first.operation, sorted(set(first.absent) & set(missed))
        if counts := unequal_counts(report, waiting, operation):
            return counts
        lack = {
            "recv": f"sending to rank {operation.rank}",
            "send": f"receiving from rank {operation.rank}",
        }
        part = lack.get(operation.kind, f"taking part in the {operation.name}")
        sentence = f"{rank_list(missed)} returned without {part}."
        if operation.kind in lack:
            return [likely_line(sentence)]
        if other_group := in_another_group(report, missed, operation):
            return other_group
        return [
            likely_line(
                sentence,
                "All ranks of a group must call the same collectives, in the same order. Does an if"
                f" or a loop leave this call out on {rank_list(missed)}?",
            )
        ]
    if polls := polling(report, call):
        return polls
    if report.ending != Ending.STUCK:
        return []  # the ranks may only be slow: an operation may find its partner later
    guessed = report.matching().guessed_ranks()
    if kinds == {"send"} and not returned and not guessed & {w.operation.peer for w in waiting}:
        have_exchanged = all(earlier_pairs(report, w.operation) for w in waiting)
        return [
            likely_line(
                f"{_who(report, waiting, 'send')} first, and no rank receives. A"
                " blocking send may wait for its receiver.",
                "Start the send and the receive together, with one dist.batch_isend_irecv. Or start"
                " the send with isend, then receive, and then wait for the send."
                + " If all messages have already arrived, remove this send." * have_exchanged,
            )
        ]
    sent = [o for trail in report.trails for o in operations(trail, call) if o.kind == "send"]
    if kinds == {"recv"} and sent:
        owed = [f"from {rank_list(w.absent)} to rank {w.operation.rank}" for w in waiting]
        which = "at least one of these sends is" if len(waiting) > 1 else "a send is"
        text = f"{which} missing, or comes too late: {', '.join(owed)}."
        return [likely_line(f"{text} Or does a rank receive too often, or too early?")]
    if kinds == {"recv"}:
        return [
            likely_line(
                f"{_who(report, waiting, 'receive')} first and nobody has sent. Start the send,"
                " then receive."
            )
        ]
    if tags := _other_tag(waiting):
        return tags
    if same := _same_neighbour(report, waiting):
        return same
    if groups := groups_in_different_orders(waiting):
        return groups
    if len(kinds) > 1 and _lines_differ(waiting):
        return [likely_line("the ranks have taken different branches: compare the lines above.")]
    return []


def cause_of_disagreement(found: Disagreement) -> list[Line]:
    """Return lines about the likely cause of a disagreement; [] if no likely cause is known."""
    sides = [side for side in found.sides if isinstance(side, Operation)]
    if len(sides) < 2:
        return []  # ``found`` is about new groups, and its own text says what to do
    dtypes = {side.dtype for side in sides}
    receiver = next((side.rank for side in sides if side.kind == "recv"), None)
    if found.what == OPERATION:
        return [
            likely_line(
                "the ranks have taken different branches. Does an if depend on the rank, or does a"
                " loop run more often on some ranks?"
            )
        ]
    if _are_at_different_lines(sides):
        return [
            likely_line(
                "the ranks are at different lines. Earlier, a rank left out a collective, called"
                " an additional collective, or called a collective in another group.",
                "Does an if depend on the rank, or does a loop run more often on some ranks?",
                f"If these lines belong together, the ranks must agree about {found.what}.",
            )
        ]
    if len(dtypes) > 1:
        have_made = (
            "some ranks have made their tensors"
            if receiver is None
            else f"rank {receiver} has made its tensor"
        )
        default = "Without a dtype, torch.empty and torch.zeros make float32. "
        return [
            likely_line(
                f"{have_made} with another dtype.",
                f"{default if 'float32' in dtypes else ''}Give the tensor the dtype of the data, as"
                " in torch.empty(shape, dtype=x.dtype).",
            )
        ]
    empty = next((side for side in sides if side.kind == "send" and not sum(side.sent)), None)
    if empty:
        return [
            likely_line(
                f"rank {empty.rank} sends a tensor without entries. Does a slice begin beyond the"
                " end of its tensor, or does it end before it begins?"
            )
        ]
    if receiver is not None:
        return [
            likely_line(
                f"the message and rank {receiver}'s tensor differ in size. Which of the two numbers"
                " is right? Correct the other one.",
                "If blocks differ in length, make the tensor as long as the block that arrives."
                " (x.split(k) makes parts of k rows, and x.tensor_split(k) makes k parts.)",
                *([GIVE_SOURCE] if any(s.kind == "recv" and s.peer is None for s in sides) else []),
            )
        ]
    if found.what == ELEMENTS:
        return [
            likely_line(
                f"the ranks' tensors have different sizes, but {sides[0].name} needs equal sizes.",
                "If you cut a tensor into parts, are all parts equally long? Pad shorter parts, or"
                " send each part as a message.",
            )
        ]
    return []


def _is_synchronous_collective(report: WorldReport, waiting: list[Waiting]) -> bool:
    """Return whether a rank waits for a collective at the line that issued it.

    A barrier does not count, because ``async_op=True`` would not correct the program.
    """
    for operation in (w.operation for w in waiting):
        stacks = report.ranks[operation.rank].stacks
        place = stack_frames.own_frame(stacks, report.submission_dir) if stacks else None
        waits_here = place is not None and place.line == operation.line
        if waits_here and operation.kind not in ("send", "recv", "barrier"):
            return True
    return False


def _are_at_different_lines(sides: list[Operation]) -> bool:
    """Return whether the operations of a collective without a root come from different lines.

    Return False for a send and its receive, which usually come from different lines. Also return
    False for a collective with a root: the root often has a line of its own, because it prepares
    other tensors.
    """
    if any(side.kind in ("send", "recv") or side.root is not None for side in sides):
        return False
    return len({(side.file, side.line) for side in sides}) > 1


def _other_tag(waiting: list[Waiting]) -> list[Line]:
    """Return a line about a send and a receive that differ only in their tags, or else []."""
    # The first operation for each kind, rank and peer.
    first = {(o.kind, o.rank, o.peer): o for o in (w.operation for w in reversed(waiting))}
    for (kind, rank, peer), send in first.items():
        receive = first.get(("recv", peer, rank)) if kind == "send" and peer is not None else None
        if receive and receive.tag != send.tag and receive.group_name == send.group_name:
            return [
                likely_line(
                    f"rank {rank} sends to rank {peer} with tag {send.tag}, but rank {peer}"
                    f" receives from rank {rank} with tag {receive.tag}.",
                    "A send and its receive must have the same tag.",
                )
            ]
    return []


def _lines_differ(waiting: list[Waiting]) -> bool:
    """Return whether ranks wait for operations that they have started in different lines."""
    of_rank: dict[int, set[tuple]] = {}
    for operation in (w.operation for w in waiting):
        place = operation.kind, operation.file, operation.line
        of_rank.setdefault(operation.rank, set()).add(place)
    return len(set(map(frozenset, of_rank.values()))) > 1


def _same_neighbour(report: WorldReport, waiting: list[Waiting]) -> list[Line]:
    """Return a line if every rank of a ring receives from the rank that it sends to.

    Return [] if a rank sends to one rank and receives from another. Also return [] if rank 0 and
    its partner send to each other, because such an exchange is no ring.
    """
    targets, sources = (
        {w.operation.rank: w.operation.peer for w in waiting if w.operation.kind == kind}
        for kind in ("send", "recv")
    )
    if targets != sources or len(targets) != report.size:
        return []
    source = targets[0]
    if source is None or targets[source] in (0, None):
        return []
    return [
        likely_line(
            f"every rank receives from the rank that it sends to. Rank 0 receives from rank"
            f" {source}, but rank {source} sends to rank {targets[source]}."
        )
    ]


def _who(report: WorldReport, waiting: list[Waiting], verb: str) -> str:
    """Return the ranks that wait, with this verb: "every rank sends" or "ranks 0 and 2 send"."""
    ranks = sorted({w.operation.rank for w in waiting})
    if len(ranks) == report.size:
        return f"every rank {verb}s"
    return f"{rank_list(ranks)} {verb if len(ranks) > 1 else verb + 's'}"


def _incomplete_group(report: WorldReport) -> list[Line]:
    """Return a line about a process group that only some of its ranks made.

    These ranks wait for the ranks that never made the group. Return [] if there is no such group.
    """
    for incomplete in report.incomplete_groups():
        group = incomplete.made[0]
        if missing := sorted(set(group.ranks) & set(incomplete.absent)):
            waits = [made.rank for made in incomplete.made if made.rank in group.ranks]
            if waits:
                return [
                    likely_line(
                        f"{rank_list(missing)} never made the group {group.ranks}, for which"
                        f" {rank_list(waits)} waited: {group}.",
                        MAKE_ALL,
                    )
                ]
    return []


def polling(report: WorldReport, call: int) -> list[Line]:
    """Return a line about ranks that ask again and again whether a message has arrived.

    Return [] if there are no such ranks. A rank whose last operation is a collective does not
    count, because a collective may be completed without a wait.
    """
    ranks = [
        rank.rank
        for rank in report.ranks
        if _polls(rank, report)
        and any(o.kind in ("send", "recv") for o in operations(rank.trail, call)[-1:])
    ]
    return (
        [
            likely_line(
                f"{rank_list(ranks)} called is_completed() again and again. With gloo,"
                " is_completed() of a send or a receive stays False until you call wait()."
            )
        ]
        if ranks
        else []
    )


def _polls(rank: RankReport, report: WorldReport) -> bool:
    """Return whether a rank is at a line with ``is_completed``, or in the loop just below it."""
    place = stack_frames.own_frame(rank.stacks, report.submission_dir)
    return place is not None and any(
        "is_completed" in stack_frames.source(replace(place, line=line))
        for line in range(place.line, max(place.line - LOOP_LINES, 1) - 1, -1)
    )


def never_went_out(report: WorldReport, waiting: list[Waiting], call: int) -> list[Line]:
    """Return a line about a rank that waits in a receive although the matching send was started.

    On gloo, if the sender does not wait for its send, the message may never be sent. Return [] if
    no rank waits in such a receive. Also return [] on the hub. The hub sends every message, so a
    rank waits in such a receive only because the machine is slow.
    """
    if report.on_hub:
        return []
    open_on = {w.operation.rank for w in waiting}
    for rank in report.ranks:
        done = operations(rank.trail, call)
        receives = [o for o in done if o.kind == "recv" and o.peer is not None]
        if (
            rank.rank in open_on
            or not rank.stacks
            or rank.held is not None
            or not receives
            or done[-1] is not receives[-1]
        ):
            continue
        last = receives[-1]
        place = stack_frames.own_frame(rank.stacks, report.submission_dir)
        if place is None or last.peer is None or place.line != last.line:
            continue
        of_lane = [o for o in receives if (o.peer, o.tag) == (last.peer, last.tag)]
        sends = [
            o
            for o in operations(report.ranks[last.peer].trail, call)
            if o.kind == "send" and o.peer == rank.rank
        ]
        sends = [o for o in sends if o.tag == last.tag]
        if len(sends) >= len(of_lane):
            send = sends[len(of_lane) - 1]
            return [
                likely_line(
                    f"rank {send.rank} started the {send}, but did not call wait() on it. So the"
                    " message was never sent.",
                    "Keep the Work of this send, and call its wait() before your function returns.",
                )
            ]
    return []


def _waits_again(report: WorldReport, waiting: list[Waiting], call: int) -> list[int]:
    """Return the ranks that hang in ``wait()`` although all their operations have partners.

    A partner that is only guessed (see ``Match``) does not count, because the guess may be wrong.
    Return [] if the world is not “stuck”, because then the ranks may only be slow. Only a send or a
    receive can hang in this way. So the result has only ranks that have issued a send or a receive
    in this call. A rank is left out if the hub cannot carry out its collective, because this is
    another reason to hang. Also return [] if the hub may withhold results of all-gathers in this
    call (see ``Call.slow_gathers``), because then an all-gather can hang, too.
    """
    if report.ending != Ending.STUCK or report.calls[call].slow_gathers:
        return []
    open_on = {w.operation.rank for w in waiting} | {rank for rank, _ in report.unanswered}
    open_on |= report.matching().guessed_ranks()
    return [
        rank.rank
        for rank in report.ranks
        if rank.rank not in open_on
        and rank.held is None
        and any(o.kind in ("send", "recv") for o in operations(rank.trail, call))
        and any(stack_frames.waits_for_nothing(s, report.submission_dir) for s in rank.stacks)
    ]
