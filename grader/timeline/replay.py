"""Replays the programs of a world's ranks on a modelled cluster, to time each of their steps.

    program_of(trail, call)            → one rank's steps of run 0, and its operations in the call
    Replay(cluster, programs).run()    → the times of each rank's work and waits, and of operations

The replay is exact, and depends on nothing but its arguments. Time is virtual, in seconds from the
moment at which all ranks begin. Events happen in the order of this time. If events have the same
time, they happen in the order in which the replay scheduled them. At time 0 the replay schedules
the ranks in order, from rank 0. A step takes no time unless it computes or waits:

- Floating-point operations take as long as ``Cluster.computing`` says.
- A communication sets off (is ready to begin) when all ranks that it needs have issued their
  operations.
- For each kind of link, a rank has one channel out and one channel in. A message waits until its
  sender's channel out and its receiver's channel in are free. Then it occupies both channels. So a
  channel carries one message at a time, in the order in which the messages set off. Messages out
  and messages in do not disturb each other.
- A collective waits for the previous collective of its process group. It begins on all ranks at the
  same time.
- A wait for an operation lasts until that operation is over. An operation runs to its end even if
  no rank waits for it.
"""

import heapq
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from grader.diagnosis.pieces_of_work import NO_PIECE, Piece, pass_mark
from grader.timeline.cluster import Cluster, whole_of
from grader.wire.combine import ITEMSIZES
from grader.wire.events import (
    AWAITS,
    ISSUES,
    MULTIPLIES,
    PASSES,
    Operation,
    Program,
    Step,
    operations,
)
from grader.wire.matches import match


@dataclass(frozen=True)
class RankProgram:
    """The steps of one rank in a call, and all operations that it issued in that call.

    A step names an operation by its position in ``operations``.
    """

    steps: Sequence[Step]
    operations: Sequence[Operation]


@dataclass
class Meeting:
    """One communication: the operations of all ranks that take part in it.

    Times are in seconds. A time is None as long as it is not known.
    """

    operations: list[Operation]
    came: int = 0  # how many of the operations have been issued
    sets_off: float | None = None
    begins: float | None = None
    ends: float | None = None
    # the ranks that began to wait for the communication before its end was known
    awaited: list[int] = field(default_factory=list)

    @property
    def is_message(self) -> bool:
        return self.operations[0].kind in ("send", "recv")

    @property
    def is_complete(self) -> bool:
        return self.came == (2 if self.is_message else len(self.operations[0].group))


@dataclass(frozen=True)
class Work:
    """A period in which a rank computes for one piece of work. Times are in seconds."""

    begin: float
    end: float
    piece: Piece


@dataclass(frozen=True)
class Wait:
    """A period in which a rank waits for an operation. If it never ends, ``end`` is None."""

    begin: float
    end: float | None
    position: int  # of the operation, in ``RankProgram.operations``
    where: str  # file:line


@dataclass
class Replayed:
    """The replay of one rank's program. If the program never ends, ``end`` is None."""

    works: list[Work] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    issued: dict[int, float] = field(default_factory=dict)  # position → when, in seconds
    end: float | None = None

    @property
    def computing(self) -> float:
        return sum(work.end - work.begin for work in self.works)


def program_of(trail: Sequence, call: int) -> RankProgram:
    """Return a rank's program in a call: its steps of run 0, the only run on a modelled cluster.

    If the rank has recorded the mark ``run 0 began``, the steps before this mark are left out. If
    the rank has recorded the mark ``run 0 ended``, the steps after this mark are left out.
    """
    steps = [
        step
        for event in trail
        if isinstance(event, Program) and event.call == call
        for step in event.steps
    ]
    began = [
        index
        for index, step in enumerate(steps)
        if step.kind == PASSES and step.text == "run 0 began"
    ]
    ended = [
        index
        for index, step in enumerate(steps)
        if step.kind == PASSES and step.text == "run 0 ended"
    ]
    own = steps[began[0] if began else 0 : ended[0] if ended else None]
    return RankProgram(own, operations(list(trail), call))


class Replay:
    """The replay of all ranks.

    Call ``run`` only once. Then ``ranks`` and ``meetings`` hold the result.
    """

    def __init__(self, cluster: Cluster, programs: Sequence[RankProgram]) -> None:
        self.cluster, self.programs = cluster, programs
        self.ranks = [Replayed() for _ in programs]
        self.meetings = [
            Meeting(met.operations)
            for met in match([list(program.operations) for program in programs])
        ]
        of = {
            id(operation): meeting for meeting in self.meetings for operation in meeting.operations
        }
        self.meeting_of = [
            [of[id(operation)] for operation in program.operations] for program in programs
        ]
        self.next_step = [0] * len(programs)
        # for each rank, the pieces of work that have begun and not ended, the innermost last
        self.pieces: list[list[Piece]] = [[] for _ in programs]
        # a channel of a rank, or a group → the time at which it becomes free
        self.free: dict[tuple, float] = defaultdict(float)
        self.agenda: list[tuple[float, int, int]] = []  # (time, order, rank)
        self.order = count()

    def run(self) -> "Replay":
        for rank in range(len(self.programs)):
            self._resume(rank, 0.0)
        while self.agenda:
            now, _, rank = heapq.heappop(self.agenda)
            self._go_on(rank, now)
        return self

    @property
    def seconds(self) -> float:
        """Return the time in seconds at which the last program ends.

        A program that never ends does not count.
        """
        return max((rank.end for rank in self.ranks if rank.end is not None), default=0.0)

    @property
    def stands_still(self) -> list[int]:
        return [rank for rank, replayed in enumerate(self.ranks) if replayed.end is None]

    def communicating(self, rank: int) -> list[tuple[float, float]]:
        """Return the periods (begin, end) in which operations of a rank were under way.

        Periods that overlap or touch are merged into one period.
        """
        spans = sorted(
            {
                (m.begins, m.ends)
                for m in self.meeting_of[rank]
                if m.begins is not None and m.ends is not None
            }
        )
        joined: list[tuple[float, float]] = []
        for begin, end in spans:
            if joined and begin <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(end, joined[-1][1])
            else:
                joined.append((begin, end))
        return joined

    def _resume(self, rank: int, at: float) -> None:
        heapq.heappush(self.agenda, (at, next(self.order), rank))

    def _go_on(self, rank: int, now: float) -> None:
        """Run a rank's steps from the time ``now`` on, up to the next step that takes time.

        The rank is resumed when this step is over.
        """
        steps, own = self.programs[rank].steps, self.ranks[rank]
        # If the rank was waiting, its wait ends now.
        if own.waits and own.waits[-1].end is None:
            waited = own.waits[-1]
            own.waits[-1] = Wait(waited.begin, now, waited.position, waited.where)
        while self.next_step[rank] < len(steps):
            step = steps[self.next_step[rank]]
            self.next_step[rank] += 1
            # The rank itself reports its steps. A dishonest rank can report a step with an
            # operation that does not exist, so check the number.
            if step.kind == PASSES:
                pass_mark(self.pieces[rank], step.text)
            elif step.kind == ISSUES and step.number < len(self.meeting_of[rank]):
                own.issued[step.number] = now
                self._issue(self.meeting_of[rank][step.number], now)
            elif step.kind == MULTIPLIES:
                end = now + self.cluster.computing(step.number)
                own.works.append(
                    Work(now, end, self.pieces[rank][-1] if self.pieces[rank] else NO_PIECE)
                )
                return self._resume(rank, end)
            elif step.kind == AWAITS and step.number < len(self.meeting_of[rank]):
                meeting = self.meeting_of[rank][step.number]
                own.waits.append(Wait(now, None, step.number, step.text))
                if meeting.ends is None:
                    return meeting.awaited.append(rank)
                return self._resume(rank, max(meeting.ends, now))
        own.end = now

    def _issue(self, meeting: Meeting, now: float) -> None:
        """Record that one more rank has issued its operation of a communication.

        When the last rank has issued its operation, the communication sets off.
        """
        meeting.came += 1
        if not meeting.is_complete:
            return
        first = meeting.operations[0]
        meeting.sets_off = now
        if meeting.is_message:
            send, receive = sorted(
                meeting.operations, key=lambda operation: operation.kind == "recv"
            )
            kind = self.cluster.kind(send.rank, receive.rank)
            ways: list[tuple] = [(send.rank, "out", kind), (receive.rank, "in", kind)]
            seconds = self.cluster.message(send.rank, receive.rank, size_on(self.cluster, send))
        else:
            ways = [(tuple(first.group), first.group_name)]
            whole = whole_of(
                first.kind, [size_on(self.cluster, o) for o in meeting.operations], len(first.group)
            )
            seconds = self.cluster.collective(first.kind, first.group, whole)
        meeting.begins = max(now, *(self.free[way] for way in ways))
        meeting.ends = meeting.begins + seconds
        for way in ways:
            self.free[way] = meeting.ends
        for rank in meeting.awaited:
            self._resume(rank, meeting.ends)


def size_on(cluster: Cluster, operation: Operation) -> float:
    """Return the size of an operation's tensor on a cluster, in bytes."""
    itemsize = ITEMSIZES.get(operation.dtype or "", 1)
    return cluster.size(operation.bytes // itemsize, itemsize)
