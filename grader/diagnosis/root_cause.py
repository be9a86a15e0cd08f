"""Says why a call did not return on every rank, in words that a student understands.

A message begins with the root cause. The ranks that only suffered from it come later.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from grader.diagnosis.finding import LIKELY, RANKS, Line
from grader.diagnosis.rank_summaries import at, busy, ended, rank_list, stands, trace
from grader.wire import machine_limits, tiers
from grader.wire.agreement import MAKE_ALL, Waiting
from grader.wire.events import Mark, operations
from grader.world import watchdog
from grader.world.report import Raised, RankReport, Returned, WorldReport

# Each entry has words from an exception of Python or torch, and a sentence about the grader's limit
# that the rank has exceeded. One of the words is enough.
BOUNDS = [
    (
        ("MemoryError", "allocate memory", "bad_alloc"),
        f"A rank may use {machine_limits.rank_memory_limit() >> 20} MiB more than at its start.",
    ),
    (
        ("Resource temporarily unavailable", "can't start new thread"),
        f"A rank may have {tiers.TASKS['cpu']} processes and threads.",
    ),
    (("File too large",), f"A file may have {tiers.FILE_BYTES >> 20} MiB."),
    (
        ("Function not implemented",),
        (
            "A rank may not make memory or keys that belong to no process: memfd_create, shmget,"
            " add_key."
        ),
    ),
    (("Too many open files",), f"A rank may have {tiers.FILES_OPEN['cpu']} open files."),
    (
        ("PermissionError: [Errno 1] Operation not permitted",),
        (
            "A rank may reach the others only through torch.distributed: it may not open sockets,"
            " share memory or locks, make links, or change permissions and times of files. In"
            " checks that measure a rank's memory, it may not start processes either."
        ),
    ),
    (
        ("PermissionError: [Errno 13]",),
        (
            "A rank may write in its working directory. It may read there and in Python's folders."
            " It may touch nothing else."
        ),
    ),
]


@dataclass(frozen=True)
class Diagnosis:
    """The explanation of a failed call: a headline, and the lines below it."""

    headline: str
    lines: Sequence[Line] = ()
    implemented: bool = True

    def __str__(self) -> str:
        return "\n".join([self.headline, *(line.text for line in self.lines)])


# Each entry has words from an exception of torch or gloo and from the line that raised it, and a
# sentence about the mistake that they show. All of the words must occur.
SLIPS = [
    (
        ("Boolean value of Tensor", "dist."),
        (
            "the call needs a list of tensors, one for each rank, but it got one tensor. Cut the"
            " tensor, and make a list of the parts."
        ),
    ),
    (
        ("tensor has to be contiguous", "recv"),
        (
            "the tensor that the message is received into is not contiguous. empty_like() of a"
            " transpose is a transpose, too: use new_empty() with the shape."
        ),
    ),
]

DEADLOCK = "Deadlock: no rank can go on."
ASK = (
    "If it hangs, ask: do the ranks disagree about which operation this is? Does a rank wait for"
    " a rank that has returned?\n"
    "    Do all ranks wait in a send, or all in a receive? Is a rank busy in a loop? More: “When it"
    " hangs” in ASSIGNMENT.md."
)
STILL = "If it still hangs, read “When it hangs” in ASSIGNMENT.md."


def not_implemented(stub: Raised) -> str:
    """Return the message for a function that is still a stub."""
    return f"Not implemented yet: {stub.text}"


def diagnose(report: WorldReport, call: int) -> Diagnosis | None:
    """Return why this call did not return on every rank; None if it returned on every rank."""
    if all(isinstance(rank.outcomes.get(call), Returned) for rank in report.ranks):
        return None
    raised = {r.rank: o for r in report.ranks if isinstance(o := r.outcomes.get(call), Raised)}
    if stubs := [rank for rank, o in raised.items() if o.stub]:
        return Diagnosis(not_implemented(raised[stubs[0]]), implemented=False)
    roots = {rank: o for rank, o in raised.items() if not o.is_consequence}
    # If the judge refuses a rank's frames, it closes the connection, and the rank's process ends.
    # The judge caused this end, not the student.
    exits = [rank for rank in report.ranks if rank.exit is not None and not rank.refused]
    disagreements, waiting = report.disagreements(), report.waiting()
    first_root = min((o.at for o in roots.values()), default=float("inf"))
    # A disagreement is the root cause if all its sides came before the first exception.
    complete = [d for d in disagreements if max(side.at for side in d.sides) < first_root]
    if complete:
        mismatch = complete[0]
        victims = bool(exits or raised) or report.ending != "failed"
        after = [Line(_exit_line(rank), RANKS) for rank in exits] + _raised_lines(roots)
        consequence = [Line("What it led to:", RANKS), *after] if after and victims else []
        if report.ending == "stuck":
            consequence = [*_standing(report, waiting, call), Line(STILL)]
        headline, *sides = str(mismatch).splitlines()
        return Diagnosis(headline, [*map(Line, sides), *consequence])
    if roots:
        return _exception(report, roots, raised)
    if exits:
        return _death(report, exits)
    if refused := [rank for rank in report.ranks if rank.refused]:
        names = rank_list([rank.rank for rank in refused])
        return Diagnosis(f"What {names} sent back is not a result: {refused[0].refused}.")
    if report.ending == "stuck":
        return _deadlock(report, waiting, call)
    if report.ending == "late":
        return _late(report, waiting, call)
    if report.ending == "excessive":
        return Diagnosis(f"The ranks {report.limit}, and were stopped.")
    if report.ending == "lost":
        return Diagnosis(
            "The process that looks after the ranks was ended while they ran. Did a rank end it?"
        )
    if raised:
        return _exception(report, raised, raised)
    earlier = [o for rank in report.ranks for o in rank.outcomes.values() if isinstance(o, Raised)]
    if stub := next((o for o in earlier if o.stub), None):
        return Diagnosis(not_implemented(stub), implemented=False)
    return Diagnosis("An earlier call of this check failed, so this call was not made.")


# ——— exceptions


def _raised_lines(raised: dict[int, Raised]) -> list[Line]:
    """Return lines about these exceptions. Ranks with the same exception are named together."""
    same: dict[tuple, list[int]] = defaultdict(list)
    for rank, o in raised.items():
        same[o.type, o.text, tuple((line["file"], line["line"]) for line in o.lines)].append(rank)
    lines = []
    for (kind, text, _), ranks in same.items():
        lines.append(f"    {rank_list(ranks)} raised {kind}: {_cut(text)}")
        lines += [f"        {step}" for step in trace(raised[ranks[0]].lines)]
    return [Line(line, RANKS) for line in lines]


def _cut(text: str, most: int = 1200) -> str:
    text = text.strip().replace("\n", "\n        ")
    return text if len(text) <= most else text[:most] + " […]"


def _exception(
    report: WorldReport, roots: dict[int, Raised], raised: dict[int, Raised]
) -> Diagnosis:
    first = min(roots.values(), key=lambda o: o.at)
    alike = {rank: o for rank, o in roots.items() if (o.type, o.text) == (first.type, first.text)}
    others = {rank: o for rank, o in roots.items() if rank not in alike}
    if first.missing:
        return Diagnosis(f"{first.text}: is it spelled as in the handout?")
    if first.around and not first.lines:
        text = (
            f"{rank_list(sorted(alike))} failed outside your function: {first.type}:"
            f" {_cut(first.text, 300)}"
        )
        return Diagnosis(
            text, [Line("If your function does nothing unusual, tell your instructor.")]
        )
    if first.unusable:
        who = f"{first.lines[-1]['file']} cannot be imported: "
    else:
        who = f"{rank_list(sorted(alike))} raised "
    lines = [Line(f"    {step}") for step in trace(first.lines)]
    lines += [
        Line(sentence)
        for signs, sentence in BOUNDS
        if any(sign in f"{first.type}: {first.text}" for sign in signs)
    ]
    said = first.text + "".join(line["source"] for line in first.lines[-1:])
    lines += [_likely(sentence) for signs, sentence in SLIPS if all(sign in said for sign in signs)]
    if first.type == "SystemExit":
        lines.append(Line("A rank must return its result. It must not end the process."))
    if any(o.peer == o.rank for rank in alike for o in operations(report.ranks[rank].trail)):
        lines.append(_likely("a rank sends to itself, or receives from itself."))
    if others:
        lines += [Line("Later, perhaps as a consequence:", RANKS), *_raised_lines(others)]
    stood_by = sorted(set(range(report.size)) - set(roots))
    if stood_by and not first.unusable:
        victims = [
            rank
            for rank in stood_by
            if rank in raised or not isinstance(_last(report, rank), Returned)
        ]
        if victims:
            lines.append(Line(_only_waited(victims, f" for {rank_list(sorted(alike))}")))
    return Diagnosis(f"{who}{first.type}: {_cut(first.text)}", lines)


def _last(report: WorldReport, rank: int) -> Returned | Raised | None:
    outcomes = report.ranks[rank].outcomes
    return outcomes[max(outcomes)] if outcomes else None


# ——— processes that ended


def _exit_line(rank: RankReport) -> str:
    return f"    rank {rank.rank} {ended(rank)}"


def _only_waited(ranks: list[int], on: str = "") -> str:
    """Return a sentence about ranks that are not the cause."""
    verb = "are" if len(ranks) > 1 else "is"
    return f"({rank_list(ranks)} only waited{on}, and {verb} not the cause.)"


def _death(report: WorldReport, exits: list[RankReport]) -> Diagnosis:
    headline, *more = [_exit_line(rank).strip() for rank in exits]
    lines = []
    for rank in exits:
        announced = [
            e.name for e in rank.trail if isinstance(e, Mark) and e.name.startswith("os._exit")
        ]
        place = watchdog.own_frame(rank.stacks, report.submission_dir)
        if announced:
            lines.append(Line(f"    rank {rank.rank} called {announced[-1]}"))
        elif place:
            lines.append(Line(f"    rank {rank.rank} was at {at(place)}"))
        elif done := operations(rank.trail):
            lines.append(Line(f"    rank {rank.rank}'s last communication was the {done[-1]}"))
    victims = sorted(set(range(report.size)) - {rank.rank for rank in exits})
    if victims:
        lines.append(Line(_only_waited(victims)))
    others = [Line(f"    {line}", RANKS) for line in more]
    return Diagnosis(headline[0].upper() + headline[1:] + ".", others + lines)


# ——— worlds that were ended


def _standing(report: WorldReport, waiting: list[Waiting], call: int) -> list[Line]:
    """Return lines that say for each rank where in its program it is, and what it waits for."""
    lines = []
    for rank in report.ranks:
        text, missed = stands(report, call, rank, waiting)
        lines += [f"    rank {rank.rank} {text}", *(f"        {line}" for line in missed)]
    return [Line(line, RANKS) for line in lines]


def _likely(*sentence: str) -> Line:
    """Return the likely cause as one sentence. Each argument is a part of it, on its own line."""
    return Line("\n        ".join(["Likely: " + sentence[0], *sentence[1:]]), LIKELY)


def _deadlock(report: WorldReport, waiting: list[Waiting], call: int) -> Diagnosis:
    standing = _standing(report, waiting, call)
    if held_back := _held_back(report, waiting):
        why = [Line(STILL)] if held_back[-1].kind == LIKELY else _why(report, waiting, call)
        return Diagnosis(
            "Deadlock in nccl's order: no rank can go on.", [*standing, *held_back, *why]
        )
    if not waiting and not _likely_cause(report, waiting, call):
        return Diagnosis(
            "No rank goes on, but no send, receive or collective waits for another rank.",
            [*standing, Line(ASK)],
        )
    return Diagnosis(DEADLOCK, standing + _why(report, waiting, call))


def _held_back(report: WorldReport, waiting: list[Waiting]) -> list[Line]:
    """Return lines about the operations that nccl's order holds back, and how to mend the program.

    Return [] if nccl's order holds back no operation.
    """
    issued = {(o.rank, o.at): o for trail in report.trails for o in operations(trail)}
    told = [
        (issued.get((rank, begun)), issued.get((rank, waits)))
        for rank, begun, waits in sorted(report.behind)
    ]
    # A send or receive may be held back although its partner, on the other rank, has been issued.
    # If so, the program should start it in one batch with the operation before it. If its partner
    # has not been issued, a batch does not help.
    alone = {id(w.operation) for w in waiting}
    pairs = {}  # for each operation that has begun: an operation that waits for its end
    for begun, waits in told:
        if begun and waits:
            has_partner = waits.kind in ("send", "recv") and id(waits) not in alone
            if has_partner or id(begun) not in pairs:
                pairs[id(begun)] = begun, waits, has_partner
    rule = (
        "Here, a rank's operations in a group run one after the other, as with nccl on GPUs. A send"
        " ends when it is received."
    )
    lines = [
        f"    rank {begun.rank}'s {waits} begins only when its {begun} has ended."
        for begun, waits, _ in pairs.values()
    ]
    likely = _likely(
        "ranks that send to each other start two operations one after the other.",
        "Start both with one dist.batch_isend_irecv.",
    )
    is_cause = any(has_partner for *_, has_partner in pairs.values())
    told_lines = [Line(rule), *(Line(line, RANKS) for line in lines), *[likely] * is_cause]
    return told_lines if pairs else []


def _why(report: WorldReport, waiting: list[Waiting], call: int) -> list[Line]:
    """Return lines about the likely cause of a hang.

    If no likely cause is known, return the questions that a student should ask. The questions are
    in the same order as in the assignment's section about hangs.
    """
    likely = _likely_cause(report, waiting, call)
    return [*likely, Line(STILL)] if likely else [Line(ASK)]


def _likely_cause(report: WorldReport, waiting: list[Waiting], call: int) -> list[Line]:
    if unmade := _unmade(report):
        return unmade
    kinds = {w.operation.kind for w in waiting}
    returned = [rank.rank for rank in report.ranks if isinstance(rank.outcomes.get(call), Returned)]
    if any(w.operation.peer == w.operation.rank for w in waiting):
        return [_likely("a rank sends to itself, or receives from itself.")]
    if unsent := _never_went_out(report, waiting, call):
        return unsent
    if polls := _polls(report):
        return polls
    if again := _waits_again(report, waiting):
        sentence = (
            "called wait() twice on the same send or receive. The second call never returns: call"
            " wait() only once."
        )
        return [_likely(f"{rank_list(again)} {sentence}")]
    if any(rank.held is not None for rank in report.ranks):
        return [
            _likely("a rank waits for the others where it should go on with its own work first.")
        ]
    missed = sorted({rank for w in waiting for rank in w.absent} & set(returned))
    if missed:
        operation = next(w.operation for w in waiting if set(w.absent) & set(missed))
        lack = {
            "recv": f"sending to rank {operation.rank}",
            "send": f"receiving from rank {operation.rank}",
        }
        part = lack.get(operation.kind, f"taking part in the {operation.name}")
        return [_likely(f"{rank_list(missed)} returned without {part}.")]
    if kinds == {"send"} and not returned:
        return [
            _likely(
                "every rank sends first and nobody is there to receive. A blocking send may wait"
                " for its receiver:",
                "start the send with isend, receive, and then wait for the send; or let some"
                " ranks receive first.",
            )
        ]
    sent = [o for trail in report.trails for o in operations(trail, call) if o.kind == "send"]
    if kinds == {"recv"} and sent:
        owed = ", ".join(f"{rank_list(w.absent)} to rank {w.operation.rank}" for w in waiting)
        return [_likely(f"a send is missing: from {owed}.")]
    if kinds == {"recv"}:
        return [
            _likely("every rank receives first and nobody has sent. Start the send, then receive.")
        ]
    if len(kinds) > 1:
        return [_likely("the ranks have taken different branches: compare the lines above.")]
    return []


def _unmade(report: WorldReport) -> list[Line]:
    """Return a line about a group that some of its ranks never made, while other ranks waited.

    Return [] if there is no such group.
    """
    for unmade in report.unmade():
        group = unmade.made[0]
        if missing := sorted(set(group.ranks) & set(unmade.absent)):
            waits = [made.rank for made in unmade.made if made.rank in group.ranks]
            if waits:
                return [
                    _likely(
                        f"{rank_list(missing)} never made the group {group.ranks}, for which"
                        f" {rank_list(waits)} waited: {group}.",
                        MAKE_ALL,
                    )
                ]
    return []


def _polls(report: WorldReport) -> list[Line]:
    """Return a line about ranks that ask again and again whether a message has arrived.

    Return [] if there are no such ranks.
    """
    ranks = [rank.rank for rank in report.ranks if "is_completed" in _line(rank, report)]
    return (
        [
            _likely(
                f"{rank_list(ranks)} called is_completed() again and again. With gloo,"
                " is_completed() does not become true until you call wait()."
            )
        ]
        if ranks
        else []
    )


def _line(rank: RankReport, report: WorldReport) -> str:
    """Return the text of the student's line that a rank is in; "" if it is in other code."""
    place = watchdog.own_frame(rank.stacks, report.submission_dir)
    return watchdog.source(place) if place else ""


def _never_went_out(report: WorldReport, waiting: list[Waiting], call: int) -> list[Line]:
    """Return a line about a rank that waits in a receive although the matching send was started.

    A message may never be sent if the sender does not wait for its send. Return [] if no rank waits
    in such a receive.
    """
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
        place = watchdog.own_frame(rank.stacks, report.submission_dir)
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
                _likely(
                    f"rank {send.rank} started the {send}, but did not call wait() on it. So the"
                    " message was never sent.",
                    "Keep the object that isend returns, and call its wait() before your function"
                    " returns.",
                )
            ]
    return []


def _waits_again(report: WorldReport, waiting: list[Waiting]) -> list[int]:
    """Return the ranks that hang in ``wait()`` although all their operations have partners."""
    open_on = {w.operation.rank for w in waiting}
    standing = [rank for rank in report.ranks if rank.rank not in open_on and rank.held is None]
    return [
        rank.rank
        for rank in standing
        if any(watchdog.waits_for_nothing(s, report.submission_dir) for s in rank.stacks)
    ]


def _late(report: WorldReport, waiting: list[Waiting], call: int) -> Diagnosis:
    """Return the diagnosis of a world that took too long.

    Ranks that were still busy come first. Ranks that only waited for busy ranks are not the cause.
    """
    computing = [rank for rank in report.ranks if rank.busy]
    if unsent := _never_went_out(report, waiting, call):
        return Diagnosis(
            DEADLOCK,
            [*_standing(report, waiting, call), *unsent, Line(STILL)],
        )
    if not computing:  # all ranks wait, but not in a way that the grader knows
        lines = _standing(report, waiting, call)
        lines += _why(report, waiting, call) if waiting else [Line(ASK)]
        return Diagnosis(
            f"Stopped after {report.limit}. The ranks used little processor time, so they mostly"
            " waited.",
            lines,
        )
    lines = []
    waited = [rank.rank for rank in report.ranks if rank not in computing and rank.stacks]
    for rank in computing:
        if rank.stacks:
            lines.append(Line(f"    rank {rank.rank} {busy(report, rank)}", RANKS))
    if waited:
        lines.append(Line(_only_waited(waited)))
    if any(watchdog.line_in_import(rank.stacks, report.submission_dir) for rank in computing):
        name = f"{report.calls[call].function.partition('.')[0]}.py"
        headline = (
            f"Stopped after {report.limit} in the import of {name}: an endless loop outside of all"
            " functions?"
        )
    else:
        headline = f"Stopped after {report.limit} in one call: an endless loop?"
    return Diagnosis(headline, [*lines, *_polls(report), Line(STILL)])
