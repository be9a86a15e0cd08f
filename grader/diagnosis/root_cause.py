"""Says why a call did not return on every rank, in words that a student understands.

A message begins with the root cause. Ranks that only waited for other ranks, or that failed as a
consequence, come later.
"""

from grader.diagnosis.exceptions import diagnose_exception, raised_lines
from grader.diagnosis.finding import LIKELY, RANKS, Diagnosis, Line, likely_line
from grader.diagnosis.likely_causes import (
    cause_of_disagreement,
    likely_cause,
    never_went_out,
    polling,
)
from grader.diagnosis.rank_summaries import (
    at,
    awaited,
    busy,
    ended,
    is_waiting,
    only_waited,
    rank_list,
    stands,
)
from grader.wire.agreement import Waiting
from grader.wire.events import Mark, Operation, operations, operations_by_key
from grader.world import stack_frames
from grader.world.report import IN_ALL_CALLS, Ending, Raised, RankReport, Returned, WorldReport

DEADLOCK = "Deadlock: no rank can go on."
NCCL_DEADLOCK = "Deadlock: nccl runs a rank's operations in order, so no rank can go on."
ASK = (
    "Find out: do the ranks disagree about which operation comes next? Does a rank wait for a rank"
    " that has returned?\n"
    "    Do all ranks wait in a send, or all in a receive? Is a rank busy in a loop? More: “When it"
    " hangs” in ASSIGNMENT.md."
)
STILL = "If it still hangs, read “When it hangs” in ASSIGNMENT.md."


def not_implemented(stub: Raised) -> str:
    """Return the message for a function that is still a stub."""
    return f"Not implemented yet: {stub.text}"


def diagnose(report: WorldReport, call: int) -> Diagnosis | None:
    """Return the diagnosis if a rank did not return from this call, and otherwise None."""
    if all(isinstance(rank.outcomes.get(call), Returned) for rank in report.ranks):
        return None
    raised = {r.rank: o for r in report.ranks if isinstance(o := r.outcomes.get(call), Raised)}
    if stubs := [rank for rank, o in raised.items() if o.stub]:
        return Diagnosis(not_implemented(raised[stubs[0]]), implemented=False)
    roots = {rank: o for rank, o in raised.items() if not o.is_consequence}
    # If the judge refuses a rank's frames, the judge closes the connection. Then the rank's process
    # ends. The judge has caused this end, not the student.
    exits = [rank for rank in report.ranks if rank.exit is not None and not rank.refused]
    disagreements, waiting = report.disagreements(), report.waiting()
    first_root = min((o.at for o in roots.values()), default=float("inf"))
    # A disagreement is the root cause if it came before the first exception in ``roots``. Then each
    # rank concerned had issued its operation, or had made its group, before this exception.
    complete = [d for d in disagreements if max(side.at for side in d.sides) < first_root]
    if complete:
        mismatch = complete[0]
        victims = bool(exits or raised) or report.ending != Ending.FAILED
        after = [Line(_exit_line(rank), RANKS) for rank in exits] + raised_lines(roots)
        consequence = (
            [Line("Consequences of the disagreement:", RANKS), *after] if after and victims else []
        )
        if report.ending == Ending.STUCK:
            consequence = [*_standing(report, waiting, call), Line(STILL)]
        headline, *sides = str(mismatch).splitlines()
        likely = cause_of_disagreement(mismatch)
        return Diagnosis(headline, [*map(Line, sides), *likely, *consequence])
    if roots:
        return diagnose_exception(report, call, roots)
    if exits:
        return _death(report, call, exits)
    if refused := [rank for rank in report.ranks if rank.refused]:
        return _refusal(refused)
    if report.ending == Ending.STUCK:
        return _deadlock(report, waiting, call)
    if report.ending == Ending.LATE:
        return _late(report, waiting, call)
    if report.ending == Ending.EXCESSIVE:
        return Diagnosis(f"The ranks {report.limit}, and were stopped.")
    if report.ending == Ending.LOST:
        return Diagnosis(
            "The process that controls the ranks was ended while they ran. Did a rank end it?"
        )
    if raised:
        return diagnose_exception(report, call, raised)
    earlier = [o for rank in report.ranks for o in rank.outcomes.values() if isinstance(o, Raised)]
    if stub := next((o for o in earlier if o.stub), None):
        return Diagnosis(not_implemented(stub), implemented=False)
    return Diagnosis("An earlier call of this check failed, so this call was not made.")


# ——— processes that ended


def _exit_line(rank: RankReport) -> str:
    return f"    rank {rank.rank} {ended(rank)}"


def _refusal(refused: list[RankReport]) -> Diagnosis:
    """Return the diagnosis of a world that ended because frames of these ranks were refused."""
    first = refused[0]
    names = rank_list([rank.rank for rank in refused])
    if not first.not_allowed:
        return Diagnosis(f"{names} sent back something that is not a result: {first.refused}.")
    were, who = ("was", "it") if len(refused) == 1 else ("were", f"rank {first.rank}")
    return Diagnosis(f"{names} {were} stopped: {who} sent {first.refused}.")


def _death(report: WorldReport, call: int, exits: list[RankReport]) -> Diagnosis:
    headline, *more = [_exit_line(rank).strip() for rank in exits]
    lines = []
    for rank in exits:
        announced = [
            e.name for e in rank.trail if isinstance(e, Mark) and e.name.startswith("os._exit")
        ]
        place = stack_frames.own_frame(rank.stacks, report.submission_dir)
        if announced:
            lines.append(Line(f"    rank {rank.rank} called {announced[-1]}"))
        elif place:
            lines.append(Line(f"    rank {rank.rank} was at {at(place)}"))
        elif done := operations(rank.trail):
            lines.append(Line(f"    rank {rank.rank}'s last communication was the {done[-1]}"))
    victims = [
        rank.rank
        for rank in report.ranks
        if rank not in exits and awaited(report, call, rank) is not None
    ]
    if victims:
        lines.append(Line(only_waited(victims)))
    others = [Line(f"    {line}", RANKS) for line in more]
    return Diagnosis(headline[0].upper() + headline[1:] + ".", others + lines)


# ——— worlds that were ended


def _standing(report: WorldReport, waiting: list[Waiting], call: int) -> list[Line]:
    """Return lines about each rank: its place in its program, and what its operations wait for."""
    lines = []
    for rank in report.ranks:
        text, missed = stands(report, call, rank, waiting)
        lines += [f"    rank {rank.rank} {text}", *(f"        {line}" for line in missed)]
    return [Line(line, RANKS) for line in lines]


def _deadlock(report: WorldReport, waiting: list[Waiting], call: int) -> Diagnosis:
    standing = _standing(report, waiting, call)
    if held_back := _held_back(report, waiting):
        why = [Line(STILL)] if held_back[-1].kind == LIKELY else _why(report, waiting, call)
        return Diagnosis(NCCL_DEADLOCK, [*standing, *held_back, *why])
    if not waiting and (unfit := _unanswered(report)):
        return Diagnosis(DEADLOCK, [*standing, *unfit, Line(STILL)])
    # A match may be a guess. Then an operation may wait although ``waiting`` is empty.
    is_guess = bool(report.matching().guessed_ranks())
    if not waiting and not is_guess and not likely_cause(report, waiting, call):
        return Diagnosis(
            "All ranks are stuck, although no rank waits in a send, a receive or a collective.",
            [*standing, Line(ASK)],
        )
    return Diagnosis(DEADLOCK, standing + _why(report, waiting, call))


def _unanswered(report: WorldReport) -> list[Line]:
    """Return lines about collectives that all ranks joined, and that the hub cannot carry out.

    Disagreements between ranks are found earlier: see ``wire.agreement``. In these collectives, the
    sizes of a rank's own tensors do not fit together. Each rank gets one line, about its first such
    collective.
    """
    issued = operations_by_key(report.trails)
    first: dict[int, Operation] = {}
    for rank, time in report.unanswered:
        if operation := issued.get((rank, time)):
            first.setdefault(rank, operation)
    return [
        Line(
            f"    rank {rank}'s {operation} cannot be carried out. Do the sizes of its input"
            " and its output fit together?",
            RANKS,
        )
        for rank, operation in sorted(first.items())
    ]


def _held_back(report: WorldReport, waiting: list[Waiting]) -> list[Line]:
    """Return lines about the operations that nccl's order holds back, with advice for the student.

    Return [] if nccl's order holds back no operation.
    """
    issued = operations_by_key(report.trails)
    told = [
        (issued.get((rank, begun)), issued.get((rank, waits)))
        for rank, begun, waits in sorted(report.behind)
    ]
    # A send or receive may be held back although its partner, on the other rank, has been issued.
    # In this case, the program should start the held operation and the operation before it in one
    # batch. If the partner has not been issued, a batch does not help.
    alone = {id(w.operation) for w in waiting}
    pairs = {}  # for each operation that has begun: an operation that waits for its end
    for begun, waits in told:
        if begun and waits:
            has_partner = waits.kind in ("send", "recv") and id(waits) not in alone
            if has_partner or id(begun) not in pairs:
                pairs[id(begun)] = begun, waits, has_partner
    rule = (
        "In this check, a rank's operations in a group run one after the other, as with nccl on"
        " GPUs. A send ends when its message is received."
    )
    lines = [
        f"    rank {begun.rank}'s {waits} begins only when its {begun} has ended."
        for begun, waits, _ in pairs.values()
    ]
    mend = likely_line(
        "a rank that is named above starts its two operations in separate calls.",
        "Start both with one dist.batch_isend_irecv.",
    )
    is_cause = any(has_partner for *_, has_partner in pairs.values())
    told_lines = [Line(rule), *(Line(line, RANKS) for line in lines), *[mend] * is_cause]
    return told_lines if pairs else []


def _why(report: WorldReport, waiting: list[Waiting], call: int) -> list[Line]:
    """Return lines about the likely cause of a hang.

    If no likely cause is known, return the questions that a student should ask. The questions are
    in the same order as in the assignment's section about hangs.
    """
    causes = likely_cause(report, waiting, call)
    return [*causes, Line(STILL)] if causes else [Line(ASK)]


def _late(report: WorldReport, waiting: list[Waiting], call: int) -> Diagnosis:
    """Return the diagnosis of a world that took too long.

    If some ranks were still busy, the diagnosis names them first. Then it names the ranks that only
    waited: they are not the cause.
    """
    of_all_calls = report.limit.endswith(IN_ALL_CALLS)
    limit = report.limit if of_all_calls else f"{report.limit} in one call"
    returned = [r for r in report.ranks if isinstance(r.outcomes.get(call), Returned)]
    computing = [rank for rank in report.ranks if rank.busy and rank not in returned]
    if unsent := never_went_out(report, waiting, call):
        return Diagnosis(
            DEADLOCK,
            [*_standing(report, waiting, call), *unsent, Line(STILL)],
        )
    if not computing and (spent := [rank.rank for rank in returned if rank.busy]):
        used = f"{rank_list(spent).capitalize()} used much processor time, and then returned."
        return Diagnosis(f"Stopped after {limit}. {used}", _standing(report, waiting, call))
    if not computing:  # no rank computes, but the grader has found no deadlock
        lines = _standing(report, waiting, call)
        lines += _why(report, waiting, call) if waiting else polling(report, call) or [Line(ASK)]
        return Diagnosis(
            f"Stopped after {report.limit}. The ranks used little processor time, so they mostly"
            " waited.",
            lines,
        )
    lines = []
    waited = [
        rank.rank
        for rank in report.ranks
        if rank not in computing and is_waiting(report, call, rank)
    ]
    for rank in computing:
        if rank.stacks:
            lines.append(Line(f"    rank {rank.rank} {busy(report, rank)}", RANKS))
    if waited:
        lines.append(Line(only_waited(waited)))
    if any(stack_frames.line_in_import(rank.stacks, report.submission_dir) for rank in computing):
        name = f"{report.calls[call].function.partition('.')[0]}.py"
        headline = (
            f"Stopped after {report.limit} in the import of {name}. Is there an endless loop"
            " outside of all functions?"
        )
    else:
        headline = f"Stopped after {limit}. Is there an endless loop?"
    return Diagnosis(headline, [*lines, *polling(report, call), Line(STILL)])
