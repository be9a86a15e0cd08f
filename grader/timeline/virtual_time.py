"""Turns a replay into spans, and computes the times of computing, waiting and communicating.

``grader.diagnosis.spans`` makes the same spans from a run in real time. Here the times are virtual.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby

from grader.diagnosis.spans import COMMUNICATING, COMPUTING, WAITING, Span
from grader.timeline.replay import Replay, Wait, Work

# (an operation's rank, its time in the run) → the ranks that never joined the operation
Absent = dict[tuple[int, int], tuple[int, ...]]


def spans_of(replay: Replay, absent: Absent, messages: bool) -> list[Span]:
    """Return all spans, rank by rank.

    The spans of a rank's program come first. After them come the communications that were under way
    while the program did other work. If ``messages`` is False, these communications do not include
    messages.
    """
    found: list[Span] = []
    for rank, own in enumerate(replay.ranks):
        steps: list[Work | Wait] = [*own.works, *own.waits]
        steps.sort(key=lambda step: step.begin)
        for _, together in groupby(
            steps, key=lambda step: step.piece if isinstance(step, Work) else id(step)
        ):
            part = list(together)
            if isinstance(part[0], Wait):
                found += _waiting(replay, rank, part[0], absent)
            else:
                found += _computing(rank, [step for step in part if isinstance(step, Work)])
        found += _beside(replay, rank, absent, messages)
    return found


def _computing(rank: int, works: list[Work]) -> Iterable[Span]:
    name, number = works[0].piece
    label = name if number is None else f"{name} {number}"
    begin, end = works[0].begin, works[-1].end
    return [Span(rank, COMPUTING, label, begin, end, number)] if end > begin else []


def _waiting(replay: Replay, rank: int, wait: Wait, absent: Absent) -> Iterable[Span]:
    operation = replay.programs[rank].operations[wait.position]
    meeting = replay.meeting_of[rank][wait.position]
    where, label = wait.where or operation.own_line, operation.description
    whole = Span(rank, WAITING, label, wait.begin, wait.end, where=where, operation=operation)
    if wait.end is None:
        return [replace(whole, awaits=absent.get(operation.key, ()))]
    begins = min(max(meeting.begins or 0.0, wait.begin), wait.end)
    parts = [replace(whole, end=begins)] if begins > wait.begin else []
    if wait.end > begins:
        parts.append(replace(whole, kind=COMMUNICATING, begin=begins))
    return parts


def _beside(replay: Replay, rank: int, absent: Absent, messages: bool) -> Iterable[Span]:
    """Return spans of the operations that were under way while the program did other work."""
    own = replay.ranks[rank]
    # The rank waited for these operations as soon as it had issued them. So the program did nothing
    # else during these operations.
    at_once = {wait.position for wait in own.waits if wait.begin == own.issued.get(wait.position)}
    found = []
    for position, issued in own.issued.items():
        operation = replay.programs[rank].operations[position]
        meeting = replay.meeting_of[rank][position]
        if position in at_once or meeting.is_message and not messages:
            continue
        begin = issued if meeting.begins is None else meeting.begins
        if meeting.ends is None or meeting.ends > begin:
            found.append(
                Span(
                    *(rank, COMMUNICATING, operation.description, begin, meeting.ends),
                    background=True,
                    where=operation.own_line,
                    operation=operation,
                    awaits=absent.get(operation.key, ()),
                )
            )
    return found


@dataclass(frozen=True)
class Account:
    """The seconds that a replay spent on each kind of work, averaged over the ranks.

    ``whole`` is the time of the whole replay. The sum of ``computing`` and ``waiting`` can be
    smaller, because a rank does neither after the end of its program (see ``ended``).
    """

    whole: float
    computing: float
    waiting: float
    communicating: float  # while operations were under way
    exposed: float  # the part of ``communicating`` in which the rank waited

    @property
    def bubble(self) -> float:
        """Return the fraction of the whole time in which a rank does not compute, on average."""
        return 1 - self.computing / self.whole if self.whole else 0.0

    @property
    def ended(self) -> float:
        """Return the seconds from the end of a rank's program to the end of the last program."""
        return max(0.0, self.whole - self.computing - self.waiting)

    def __str__(self) -> str:
        if not self.whole:
            return "Nothing takes any time on this cluster."
        hidden = max(0.0, 1 - self.exposed / self.communicating) if self.communicating else 0.0
        beside = (
            f"; during {100 * hidden:.0f} % of this time, ranks do not wait"
            if self.communicating
            else ""
        )
        share = f"{100 * self.ended / self.whole:.0f} %"
        idle = f" A rank's program ends {milliseconds(self.ended)} ({share}) before the step ends."
        after = "" if share == "0 %" else idle
        return (
            f"The step takes {milliseconds(self.whole)}. On average over the ranks,"
            f" {milliseconds(self.computing)} are computing"
            f" ({100 * self.computing / self.whole:.0f} %) and {milliseconds(self.waiting)} waiting"
            f" ({100 * self.waiting / self.whole:.0f} %).{after} Communication is under"
            f" way for {milliseconds(self.communicating)}{beside}."
        )


def account(replay: Replay) -> Account:
    """Return the seconds of each kind of work. Every program of the replay must have ended."""
    n = len(replay.ranks)
    waits = [[(wait.begin, wait.end or wait.begin) for wait in rank.waits] for rank in replay.ranks]
    under_way = [replay.communicating(rank) for rank in range(n)]
    return Account(
        whole=replay.seconds,
        computing=sum(rank.computing for rank in replay.ranks) / n,
        waiting=sum(end - begin for own in waits for begin, end in own) / n,
        communicating=sum(end - begin for own in under_way for begin, end in own) / n,
        exposed=sum(_common(*pair) for pair in zip(waits, under_way)) / n,
    )


def _common(some: list[tuple[float, float]], others: list[tuple[float, float]]) -> float:
    """Return the total time of the overlap between the periods of two lists.

    A period is (begin, end). Each list is sorted, and its periods do not overlap each other.
    """
    total, index = 0.0, 0
    for begin, end in some:
        while index < len(others) and others[index][1] <= begin:
            index += 1
        at = index
        while at < len(others) and others[at][0] < end:
            total += max(0.0, min(end, others[at][1]) - max(begin, others[at][0]))
            at += 1
    return total


def milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 0.9995 else f"{seconds * 1e3:.0f} ms"
