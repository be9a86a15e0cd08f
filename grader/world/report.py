"""What a world was asked to do, and what came of it: plain data."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grader.wire.agreement import Disagreement, Matches, Waiting, examine, match
from grader.wire.events import Event
from grader.world.watchdog import StackFrame

CALL_BEGAN = "call began"  # a mark of every call
STANDSTILL = "a standstill"  # of all ranks that are not held: each waits in a communication


@dataclass(frozen=True)
class Delay:
    """Keep a rank from passing its mark ``at`` of a call until another rank has passed ``until``,
    and ``then`` seconds longer.

    Until a ``STANDSTILL``, or until the other rank has returned, ends without a clock, and takes
    half a second.

    With ``patience`` it is also let go when that rank itself waits after its own ``at``, or after
    so many seconds (a quarter of them where the system does not show who waits). Then whoever waits
    for it goes on, and whoever should and does not is too early every time.
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
    # +1: a rank gets a message only when it has sent the one before on, to the next rank. −1: to
    # the one before
    in_step: int = 0
    # For each rank what it may call, and what that gives: see ``wire.served``
    served: list[dict] = field(default_factory=list)
    weighs: bool = False  # have the hub look at each rank's memory whenever the rank communicates
    # Have the hub look at each rank's processor time before every send of a driver with a meter;
    # the rank waits for that
    clocks: bool = False
    note: str = ""  # what distinguishes this call from its neighbours, for the message


# What torch says on a rank whose peers have gone.
GONE_AGAIN = (
    "Connection closed by peer",
    "Connection reset",
    "Broken pipe",
    "Read error",
    "Connection refused",
)


@dataclass(frozen=True)
class Raised:
    """An exception of a rank's: type, text, and the student's lines that it came through, outermost
    first.
    """

    type: str
    text: str
    lines: list[dict]
    is_value_error: bool
    stub: bool
    missing: bool
    at: int
    around: bool = False  # not in the student's function, but in the program that calls it

    @property
    def is_consequence(self) -> bool:
        """Whether this exception only says that another rank has gone."""
        return any(sign in self.text for sign in GONE_AGAIN)

    @property
    def unusable(self) -> bool:
        """Whether the student's file could not be imported, or lacks what was asked of it."""
        return self.missing or bool(self.lines) and self.lines[-1]["function"] in ("", "<module>")


@dataclass(frozen=True)
class Returned:
    """A call's result on one rank, and its arguments as they were afterwards; ``intact``: so were
    the lists that held them.
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
    refused: str | None = None  # why its frames were not believed
    held: int | None = None  # the call that it was held back from
    done: bool = False
    may_go_on: bool = False  # as it says: nothing of its process has been changed
    # Call → bytes of memory, at most, beyond what it had before its first check
    grown: dict[int, int] = field(default_factory=dict)
    # Call → nanoseconds of processor time, with what it has started, at each look
    spent: dict[int, list[int]] = field(default_factory=dict)
    busy: bool = False  # used most of the processor time that its call was allowed
    # where it stood when the world was ended
    stacks: list[list[StackFrame]] = field(default_factory=list)


@dataclass
class WorldReport:
    size: int
    calls: list[Call]
    submission_dir: Path
    ranks: list[RankReport]
    ending: str = ""  # finished, failed, stuck, late, excessive or lost
    limit: str = ""  # the deadline that was passed, or what there was too much of, in words
    grader_fault: str = ""  # a failure of ours
    # calls whose late ranks came early: the others waited for them
    let_go: set[int] = field(default_factory=set)
    # In nccl's order, when all wait: [rank, when it issued an operation that has not ended, and one
    # that begins only after that]
    behind: list[list[int]] = field(default_factory=list)
    # The trails that were matched last, and how long they were. They are kept, so that no other
    # list takes their place.
    _matched: list[tuple[list, int]] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    @property
    def trails(self) -> list[list]:
        return [rank.trail for rank in self.ranks]

    def matching(self) -> Matches:
        """Return which operations of the ranks met, of those that have been recorded so far."""
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
        """Match once, until a trail grows or is replaced by another."""
        trails = self.trails
        if self._matched is None or any(
            trail is not known or len(trail) != length
            for trail, (known, length) in zip(trails, self._matched)
        ):
            self._matched, self._matching = [(trail, len(trail)) for trail in trails], match(trails)
            self._disagreements, self._waiting = examine(self._matching)


Runner = Callable[[int, list[Call]], WorldReport]
