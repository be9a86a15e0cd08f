"""Describes what one rank did in a call, and how the call ended on this rank.

Both the messages and the tables of the HTML report use these descriptions.
"""

import signal
from dataclasses import replace

from grader.diagnosis.finding import (
    MAX_DETAILS,
    MAX_EVIDENCE_LENGTH,
    MAX_PRINTED,
    MAX_SPANS_SHOWN,
    MAX_STEPS_SHOWN,
    Compared,
    RankSummary,
    Step,
    short,
)
from grader.diagnosis.spans import Span, spans
from grader.wire.agreement import Waiting
from grader.wire.events import GroupMade, Operation, operations
from grader.world import stack_frames
from grader.world.report import STANDSTILL, Ending, Raised, RankReport, Returned, WorldReport

# The beginnings of lines that do not come from a student's print. torch 2.8 and 2.9 print the first
# line when the ranks are connected. The other two lines are printed before gloo aborts the process.
GLOO = (
    "[Gloo] ",
    "terminate called after throwing an instance of 'gloo::",
    "  what():  [enforce fail at ",
)

SIGNALS: dict[int, str] = {
    signal.SIGSEGV: "segmentation fault",
    signal.SIGABRT: "abort; gloo often aborts if sizes or dtypes do not match",
    signal.SIGKILL: "out of memory, perhaps",
    signal.SIGFPE: "arithmetic error",
    signal.SIGBUS: "bus error",
}


def rank_list(ranks: list[int]) -> str:
    """Return a list of ranks in words: "rank 2", "ranks 0 and 2" or "ranks 0, 1 and 2"."""
    *most, last = map(str, ranks)
    return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"


def only_waited(ranks: list[int], on: str = "") -> str:
    """Return a sentence about ranks that only waited, and so are not the cause."""
    verb = "are" if len(ranks) > 1 else "is"
    return f"({rank_list(ranks)} only waited{on}, and {verb} not the cause.)"


def awaited(report: WorldReport, call: int, rank: RankReport) -> set[int] | None:
    """Return the ranks that a rank waited for when the world failed; None if it did not wait.

    A rank waited in three cases:

    - One of its operations is open.
    - Other ranks did not make a group that this rank made.
    - The rank raised an exception that only says that another rank has gone. Such an exception does
      not say which rank has gone, so the set may be empty.
    """
    outcome = rank.outcomes.get(call)
    if isinstance(outcome, Returned) or rank.held is not None or rank.refused:
        return None
    if isinstance(outcome, Raised) and not outcome.is_consequence:
        return None
    found: set[int] = set()
    for waiting in report.waiting():
        if _is_open(waiting.operation, rank):
            found |= set(waiting.absent)
    for incomplete in report.incomplete_groups():
        for made in incomplete.made:
            if _is_open(made, rank) and rank.rank in made.ranks:
                found |= set(incomplete.absent) & set(made.ranks)
    return found if found or outcome else None


def _is_open(event: Operation | GroupMade, rank: RankReport) -> bool:
    """Return whether a rank issued this event in a call that did not return on this rank."""
    return event.rank == rank.rank and not isinstance(rank.outcomes.get(event.call), Returned)


def is_waiting(report: WorldReport, call: int, rank: RankReport) -> bool:
    """Return whether a rank's stacks show that it waits for other ranks."""
    if isinstance(rank.outcomes.get(call), Returned) or rank.held is not None:
        return False
    is_open = any(w.operation.rank == rank.rank for w in report.waiting())
    return any(
        stack_frames.in_communication(stack, report.submission_dir, is_open)
        for stack in rank.stacks
    )


def summarize(
    report: WorldReport,
    call: int,
    rank: RankReport,
    waiting: list[Waiting],
    returned: str,
    compared: Compared | None,
) -> RankSummary:
    """Return the evidence about one rank.

    If the rank returned, ``returned`` describes the value that it returned.
    """
    outcome = rank.outcomes.get(call)
    details: list[str] = []
    if isinstance(outcome, Returned):
        fate = f"returned {returned}"
    elif isinstance(outcome, Raised):
        fate, details = f"raised {outcome.type}: {outcome.text}", trace(outcome.lines)
    elif rank.exit is not None:
        fate = ended(rank)
    elif rank.refused:
        fate = (
            f"was stopped: it sent {rank.refused}"
            if rank.not_allowed
            else f"sent back something that is not a result: {rank.refused}"
        )
    elif rank.busy and rank.stacks:
        fate = busy(report, rank)
    elif rank.stacks or rank.held is not None:
        fate, details = stands(report, call, rank, waiting)
    else:
        fate = "did not return"
    own = operations(rank.trail, call)
    steps = _steps(own)
    lines = [
        line
        for line in rank.output.decode(errors="replace").splitlines()
        if not line.startswith(GLOO)
    ]
    return RankSummary(
        rank.rank,
        short(fate),
        tuple(map(short, details[:MAX_DETAILS])),
        compared,
        steps[:MAX_STEPS_SHOWN],
        len(steps[MAX_STEPS_SHOWN:]),
        round(sum(operation.traffic for operation in own)),
        tuple(line[:200] for line in lines[-MAX_PRINTED:]),
        rank.lines_cut + max(len(lines) - MAX_PRINTED, 0),
    )


def timeline(report: WorldReport, call: int) -> tuple[Span, ...]:
    """Return what each rank did in a call, and when, as spans of time.

    If there are too many spans, keep only the last spans of each rank. Return () if no rank
    communicated, or if the world ended in another way than “finished” or “stuck”. For example, if a
    rank failed, nobody knows how long the other ranks waited for this rank.
    """
    if report.ending not in (Ending.FINISHED, Ending.STUCK) or not any(
        operations(trail, call) for trail in report.trails
    ):
        return ()
    found, most = spans(report, call), MAX_SPANS_SHOWN // report.size
    kept = [
        span for rank in report.ranks for span in [s for s in found if s.rank == rank.rank][-most:]
    ]
    return tuple(
        replace(span, label=short(span.label), where=short(span.where), operation=None)
        for span in kept
    )


def _steps(done: list[Operation]) -> tuple[Step, ...]:
    """Group equal operations, and return one ``Step`` for each group, in the order of issue."""
    counts: dict[str, list[int]] = {}
    for operation in done:
        counts.setdefault(str(operation), []).append(operation.bytes)
    return tuple(
        Step(short(what, MAX_EVIDENCE_LENGTH), len(sizes), sum(sizes))
        for what, sizes in counts.items()
    )


def stands(
    report: WorldReport, call: int, rank: RankReport, waiting: list[Waiting]
) -> tuple[str, list[str]]:
    """Return words that say where in its program a rank is, and lines about what it waits for.

    There is one line for each of the last two open operations of the rank. The line says which
    ranks the operation waits for.
    """
    if isinstance(rank.outcomes.get(call), Returned):
        return "has already returned", []  # it may be held in a later call
    if rank.held is not None:
        return f"is delayed by this check until {_release(report, rank)}", []
    place = stack_frames.own_frame(rank.stacks, report.submission_dir)
    open_ones = [w for w in waiting if w.operation.rank == rank.rank]
    missed = [
        f"its {w.operation} waits for {rank_list(w.absent)}{_of_group(report, w.operation)}"
        for w in open_ones[-2:]
    ]
    idle = open_ones or any(
        stack_frames.in_communication(stack, report.submission_dir, False) for stack in rank.stacks
    )
    is_idle = report.ending == Ending.STUCK or idle  # no rank of a world that is stuck computes
    waits = (
        is_idle
        or not place
        or any(word in stack_frames.source(place) for word in ("wait", "sleep"))
    )
    return f"{'waits' if waits else 'is busy'} at {at(place)}" if place else "waits", missed


def _release(report: WorldReport, rank: RankReport) -> str:
    """Return words that say until when a rank is held."""
    assert rank.held is not None
    delay = report.calls[rank.held].delays[rank.rank]
    if delay.until == STANDSTILL:
        return "all other ranks wait"
    if delay.until:
        return f"rank {delay.on} reaches the point “{delay.until}”"
    # No mark has an empty name. So if ``until`` is empty, the end of the call on rank ``delay.on``
    # releases the held rank.
    waits = "waits or " if delay.patience else ""
    return f"rank {delay.on} {waits}returns"


def _of_group(report: WorldReport, operation: Operation) -> str:
    """Return a few words about the group of an operation, or "" if all ranks are in the group."""
    group = operation.group
    return f", in the group of {rank_list(group)}" if len(group) < report.size else ""


def busy(report: WorldReport, rank: RankReport) -> str:
    """Return words that name the line at which a rank is busy. The rank must have stacks."""
    place = stack_frames.own_frame(rank.stacks, report.submission_dir)
    return (
        f"is busy at {at(place)}"
        if place
        else f"is busy outside your files, in {rank.stacks[-1][0].function}"
    )


def at(place: stack_frames.StackFrame) -> str:
    text = stack_frames.source(place)
    return f"{place.file.rpartition('/')[2]}:{place.line}" + (f":  {text}" if text else "")


def trace(steps: list[dict]) -> list[str]:
    """Return the student's lines in a traceback: at most four, beginning with the innermost call.

    ``steps`` lists the lines from the outermost call on.
    """
    lines = []
    for step in list(reversed(steps))[:4]:
        inside = f", in {step['function']}" if step["function"] not in ("", "<module>") else ""
        lines.append(f"{step['file']}:{step['line']}{inside}:  {step['source']}")
    return lines


def ended(rank: RankReport) -> str:
    """Return words that say how a rank's process ended. Its ``exit`` must not be None."""
    assert rank.exit is not None  # it has ended
    if rank.exit >= 0:
        return f"ended its process with exit code {rank.exit} instead of returning"
    number = -rank.exit
    name = signal.Signals(number).name if number in list(signal.Signals) else f"signal {number}"
    meaning = SIGNALS.get(number)
    return f"was killed by {name}" + (f" ({meaning})" if meaning else "")
