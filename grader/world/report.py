"""Holds what a world was asked to do, and what came of it. This is plain data."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grader.wire.agreement import Disagreement, Matches, Waiting, examine, match
from grader.wire.events import Event
from grader.world.watchdog import StackFrame

CALL_BEGAN = "call began"  # the first mark of every call
STANDSTILL = "a standstill"  # all ranks that are not held wait in a communication


@dataclass(frozen=True)
class Delay:
    """Holds a rank before its mark ``at`` of a call until rank ``on`` has passed a mark ``until``.

    The rank is also released when the call has ended on rank ``on``. After its release it waits
    ``then`` seconds more.

    If ``until`` is ``STANDSTILL``, the rank is held until all ranks that are not held wait. No
    clock decides this. It takes half a second if no hub reports the standstill.

    With ``patience`` the rank is also released when rank ``on`` itself waits after its own mark
    ``at``, or after so many seconds (a quarter of them if the system does not show who waits). So a
    rank ``on`` that waits for this one can go on. A rank ``on`` that should wait and does not is
    too early every time.
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
    # +1: a rank gets a message only when it has sent the message before on to the next rank. −1:
    # likewise to the previous rank. 0: no such rule
    in_step: int = 0
    # for each rank, what it may call and what that gives: see ``wire.served``
    served: list[dict] = field(default_factory=list)
    weighs: bool = False  # have the hub look at each rank's memory whenever the rank communicates
    # have the hub look at each rank's processor time before every send, if the driver has a meter;
    # the rank waits for that
    clocks: bool = False
    note: str = ""  # what distinguishes this call from its neighbours, for the message


# Parts of torch's messages on a rank whose peers have gone.
GONE_AGAIN = (
    "Connection closed by peer",
    "Connection reset",
    "Broken pipe",
    "Read error",
    "Connection refused",
)


@dataclass(frozen=True)
class Raised:
    """An exception that a rank raised: its type, its text, and the student's lines.

    It came through these ``lines``, outermost first. ``stub`` says that the student's own file
    raised a NotImplementedError. ``missing`` says that the file lacks the function. ``at`` is the
    monotonic time in nanoseconds.
    """

    type: str
    text: str
    lines: list[dict]
    is_value_error: bool
    stub: bool
    missing: bool
    at: int
    around: bool = False  # raised not in the student's function, but in the program that calls it

    @property
    def is_consequence(self) -> bool:
        """Return whether this exception only says that another rank has gone."""
        return any(sign in self.text for sign in GONE_AGAIN)

    @property
    def unusable(self) -> bool:
        """Return whether the student's file could not be imported, or lacks what is asked of it."""
        return self.missing or bool(self.lines) and self.lines[-1]["function"] in ("", "<module>")


@dataclass(frozen=True)
class Returned:
    """A call's result on one rank, and its arguments as they were afterwards.

    ``intact`` says whether the lists and dicts among the arguments still held the same tensors.
    """

    value: Any
    args: list
    kwargs: dict
    intact: bool = True


@dataclass
class RankReport:
    rank: int
    trail: list[Event] = field(default_factory=list)
    outcomes: dict[int, Returned | Raised] = field(default_factory=dict)
    output: bytes = b""
    exit: int | None = None  # exit code, or −signal, of a process that ended by itself
    refused: str | None = None  # why its frames were not accepted
    held: int | None = None  # the call in which it is held now
    done: bool = False
    may_go_on: bool = False  # by its own word: nothing of its process has been changed
    # call → the most bytes of memory that it had beyond those before its first check
    grown: dict[int, int] = field(default_factory=dict)
    # call → nanoseconds of processor time at each look, with all that it has started
    spent: dict[int, list[int]] = field(default_factory=dict)
    busy: bool = False  # used most of the processor time that its call was allowed
    # where its threads stood when the world was ended
    stacks: list[list[StackFrame]] = field(default_factory=list)


@dataclass
class WorldReport:
    size: int
    calls: list[Call]
    submission_dir: Path
    ranks: list[RankReport]
    ending: str = ""  # finished, failed, stuck, late, excessive or lost
    limit: str = ""  # in words: the deadline that was passed, or what there was too much of
    grader_fault: str = ""  # a failure of the grader itself
    # calls whose held ranks were released early, because the others waited for them
    let_go: set[int] = field(default_factory=set)
    # If all wait on the network ``strict``: [rank, when it issued an operation that has begun and
    # not ended, when it issued the first one that begins only after that]
    behind: list[list[int]] = field(default_factory=list)
    # The trails that were matched last, and how long they were. They are kept so that no new list
    # can be taken for one of them.
    _matched: list[tuple[list, int]] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    @property
    def trails(self) -> list[list]:
        return [rank.trail for rank in self.ranks]

    def matching(self) -> Matches:
        """Return which operations of the ranks met, among those recorded so far."""
        self._match()
        return self._matching

    def disagreements(self) -> list[Disagreement]:
        """Return the operations that met and do not fit, the earliest first."""
        self._match()
        return self._disagreements

    def waiting(self) -> list[Waiting]:
        """Return the operations that are still waiting for another rank."""
        self._match()
        return self._waiting

    def _match(self) -> None:
        """Match the trails, unless no trail has grown or been replaced since the last time."""
        trails = self.trails
        if self._matched is None or any(
            trail is not known or len(trail) != length
            for trail, (known, length) in zip(trails, self._matched)
        ):
            self._matched, self._matching = [(trail, len(trail)) for trail in trails], match(trails)
            self._disagreements, self._waiting = examine(self._matching)


Runner = Callable[[int, list[Call]], WorldReport]
