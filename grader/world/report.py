"""Defines the calls that a world makes, and the report of a world. Both are plain data."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from grader.wire.agreement import (
    Disagreement,
    IncompleteGroup,
    Waiting,
    examine,
    examine_groups,
)
from grader.wire.callbacks import Growth
from grader.wire.events import Event
from grader.wire.frames import CALL_BEGAN
from grader.wire.matches import Matches, match
from grader.world.stack_frames import StackFrame

# the end of ``WorldReport.limit`` if the limit holds for all calls, not for each call
IN_ALL_CALLS = "in all calls together"
STANDSTILL = "a standstill"  # all ranks, except held ranks, wait in a communication


@dataclass(frozen=True)
class Delay:
    """Holds a rank before its mark ``at`` until another rank ``on`` has passed the mark ``until``.

    A mark is a named point of a rank's program. Both marks belong to the same call. The held rank
    is also released when this call has ended on rank ``on``. After its release the held rank waits
    ``then`` seconds more.

    If ``until`` is ``STANDSTILL``, the rank is held until all ranks that are not held wait. The hub
    reports when this is the case. Without a hub, the judge needs half a second to see it, or more
    if the system does not show what threads do. The rank is also released when a quarter of the
    call's time limit has passed.

    If ``patience`` is given, two more events release the held rank. One is that rank ``on`` has
    itself passed the mark ``at``, and now waits. The other is that ``patience`` seconds have passed
    (a quarter of this time if the system does not show who waits). So if rank ``on`` waits for the
    held rank, both ranks go on. If rank ``on`` should wait for the held rank, but does not, rank
    ``on`` is too early every time, and not only by chance.
    """

    until: str
    on: int
    then: float = 0.0
    at: str = CALL_BEGAN
    patience: float | None = None


@dataclass(frozen=True)
class Call:
    """One call of a student's function on every rank: ``arguments[rank]`` is ``(args, kwargs)``."""

    function: str
    arguments: list[tuple[list, dict]]
    driver: str = "plain"
    may_raise: bool = False
    delays: dict[int, Delay] = field(default_factory=dict)
    # +1: a rank gets a message only after it has passed the previous message on to the next rank.
    # −1: the same, but the rank passes messages on to the previous rank. 0: there is no such rule
    in_step: int = 0
    # for each rank, the functions that the judge gives to it, and their results: ``wire.callbacks``
    served: list[dict] = field(default_factory=list)
    # have the hub measure each rank's memory: its current memory (``callbacks.SETTLED``), or its
    # peak until now (``callbacks.PEAK``). ``callbacks.CallOptions`` says when. In a world with such
    # a call, the ranks are new processes, and may not start other processes. They give back freed
    # memory before their first call
    weighs: str = ""
    # have the hub measure each rank's processor time. If the driver has a meter, the hub measures
    # when the call begins and before every send, and the rank waits until this is done. The hub
    # also withholds each message until its receiver can do nothing else, and then measures the
    # receiver (``hub.awaited_receives``)
    clocks: bool = False
    # have the hub withhold the result of an all-gather from a rank until the rank has used a
    # function of the judge (see ``hub.slow_gathers``). With gloo this has no effect
    slow_gathers: bool = False
    # a dtype, or empty. If it is a dtype, the hub reads the bytes that each operation sends as
    # numbers of this dtype. It reports the sum of their squares, and of their fourth powers
    squares: str = ""
    note: str = ""  # for the message: the difference between this call and the check's other calls
    # the note of each call of the student's function, if the driver is one of ``call_note.IN_TURN``
    turn_notes: list[str] = field(default_factory=list)


# Parts of the error messages that torch gives on a rank whose peers have gone.
PEER_GONE_TEXTS = (
    "Connection closed by peer",
    "Connection reset",
    "Broken pipe",
    "Read error",
    "Connection refused",
)


@dataclass(frozen=True)
class Raised:
    """An exception that a rank raised.

    ``lines`` are the lines of the student's code that the exception came through, outermost first.
    ``stub`` says whether the student's own file raised a NotImplementedError. ``missing`` says
    whether the file lacks the function. ``at`` is the time of the exception, in nanoseconds of the
    monotonic clock. ``inside`` is the name of the function, of torch or Python, that raised the
    exception. It is empty if the student's own line raised the exception.
    """

    type: str
    text: str
    lines: list[dict]
    is_value_error: bool
    stub: bool
    missing: bool
    at: int
    around: bool = False  # raised in the program that calls the student's function
    inside: str = ""

    @property
    def is_consequence(self) -> bool:
        """Return whether this exception only says that another rank has gone."""
        return any(sign in self.text for sign in PEER_GONE_TEXTS)

    @property
    def unusable(self) -> bool:
        """Return whether the student's file could not be imported, or lacks what the call needs."""
        return self.missing or bool(self.lines) and self.lines[-1]["function"] in ("", "<module>")


@dataclass(frozen=True)
class Returned:
    """The result of a call on one rank, and the arguments as they were after the call.

    ``intact`` says whether the lists and dicts among the arguments still contained the same tensors
    after the call. ``same_flags`` says whether the call changed no argument's ``requires_grad``,
    and gave no gradient to an argument that requires none.
    """

    value: Any
    args: list
    kwargs: dict
    intact: bool = True
    same_flags: bool = True


@dataclass
class RankReport:
    rank: int
    trail: list[Event] = field(default_factory=list)
    outcomes: dict[int, Returned | Raised] = field(default_factory=dict)
    output: bytes = b""  # the end of what the rank printed
    lines_cut: int = 0  # how many lines the rank printed before ``output``
    # exit code, or −signal, of a process that ended before the world had an ending
    exit: int | None = None
    refused: str | None = None  # why the rank's frames were not accepted
    # whether ``refused`` names an operation, or a request to torch's store, that is not allowed
    not_allowed: bool = False
    held: int | None = None  # the call in which the rank is held now
    done: bool = False
    # whether the rank reports that its process is unchanged, so that another check may use it
    may_go_on: bool = False
    # call → for each new maximum of the rank's memory: by how much it exceeded the memory that the
    # rank had before any student code ran
    grown: dict[int, list[Growth]] = field(default_factory=dict)
    # call → for each time that the hub measured: the nanoseconds of processor time of the rank and
    # of all processes that it has started
    spent: dict[int, list[int]] = field(default_factory=dict)
    # call → the same number, measured whenever all threads of the rank began to wait for a message
    spent_before_waits: dict[int, list[int]] = field(default_factory=dict)
    # call → for each operation that sent something, the sum of the squares of the sent numbers, and
    # the sum of their fourth powers
    squares: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    busy: bool = False  # whether the rank used more than half of the processor time of a call
    # the stacks of the rank's threads when the judge last read them
    stacks: list[list[StackFrame]] = field(default_factory=list)


class Ending(str, Enum):
    """How a world ended."""

    FINISHED = "finished"  # all ranks have made all calls
    FAILED = "failed"  # a rank raised an exception, ended, or sent something that is not accepted
    STUCK = "stuck"  # no rank will ever go on
    LATE = "late"  # a time limit was exceeded
    EXCESSIVE = "excessive"  # another limit was exceeded
    LOST = "lost"  # the supervisor ended too early


@dataclass
class WorldReport:
    size: int
    calls: list[Call]
    submission_dir: Path
    ranks: list[RankReport]
    on_hub: bool = False  # whether the hub carried the ranks' operations
    ending: Ending | None = None  # None: the world goes on
    limit: str = ""  # in words: the exceeded time limit, or what ranks did beyond a limit
    grader_fault: str = ""  # a failure of the grader itself
    # calls in which held ranks were released early, because the other ranks waited for them
    released_early: set[int] = field(default_factory=set)
    # The next three lists are the hub's last report about waiting ranks. The hub reports at a
    # standstill, and when the judge asks for stacks. ``behind`` is empty if the network is not
    # ``strict``. It has lists [rank, begun, waits]. At time ``begun`` the rank issued an operation
    # that has not ended. At time ``waits`` the rank issued another operation, which cannot begin
    # before the first one ends (see ``StrictOrder.behind``).
    behind: list[list[int]] = field(default_factory=list)
    # [rank, time] of each operation that the hub cannot carry out, although all ranks have joined
    # its collective. ``time`` is when the rank issued the operation.
    unanswered: list[list[int]] = field(default_factory=list)
    # Sends and receives that belong together, for ``match``. They are the pairs that the trails do
    # not show, and the pairs that do not fit together.
    pairs: list[list[int]] = field(default_factory=list)
    # The trails that were matched last, each with its length at that time. Because these lists are
    # kept, Python cannot give the identity of one of them to a new list.
    _matched: list[tuple[list, int]] | None = field(
        default=None, init=False, repr=False, compare=False
    )
    # the ``pairs`` that were used in the last matching
    _matched_pairs: list[list[int]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    @property
    def trails(self) -> list[list]:
        return [rank.trail for rank in self.ranks]

    def matching(self) -> Matches:
        """Return the matches of all operations that have been recorded until now."""
        self._match()
        return self._matching

    def disagreements(self) -> list[Disagreement]:
        """Return the cases in which operations belong together but do not agree, earliest first.

        If the ranks disagree about the groups that they make, this disagreement comes first. The
        other disagreements may follow from it, because an operation in a wrong group finds a wrong
        partner, or no partner.
        """
        self._match()
        return self._disagreements

    def waiting(self) -> list[Waiting]:
        """Return the operations that are still waiting for another rank."""
        self._match()
        return self._waiting

    def incomplete_groups(self) -> list[IncompleteGroup]:
        """Return the groups that some ranks have begun to make, and other ranks have not begun."""
        self._match()
        return self._incomplete_groups

    def _match(self) -> None:
        """Match the trails again if the trails or ``pairs`` have changed."""
        trails = self.trails
        is_new = self._matched is None or self._matched_pairs != self.pairs
        if is_new or any(
            trail is not known or len(trail) != length
            for trail, (known, length) in zip(trails, self._matched or ())
        ):
            self._matched = [(trail, len(trail)) for trail in trails]
            self._matched_pairs = list(self.pairs)
            self._matching = match(trails, self.pairs)
            self._disagreements, self._waiting = examine(self._matching)
            about_groups, self._incomplete_groups = examine_groups(trails)
            if about_groups:
                self._disagreements = [about_groups, *self._disagreements]


Runner = Callable[[int, list[Call]], WorldReport]
