"""Defines the record of one check's result. Every report is made of records."""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace

from grader.diagnosis.finding import Finding

NOT_RUN = "not run"  # the grader has not run the check yet, or was stopped before the check
PASSED = "passed"
FAILED = "failed"
UNIMPLEMENTED = "not implemented"
NOT_ATTEMPTED = "not attempted"  # the file of an optional part is missing or unchanged
SKIPPED = "skipped"
ERROR = "error"
# The checks of these statuses are listed together, without their messages.
TO_DO = {UNIMPLEMENTED: "Not implemented yet", NOT_ATTEMPTED: "Not attempted"}


@dataclass
class Answers:
    """Counts a function's calls in one or more checks: accepted, refused and wrong calls."""

    accepted: int = 0  # calls with right arguments in which the function returned on every rank
    # calls with right arguments in which the function raised a ValueError on at least one rank
    refused: int = 0
    wrong: int = 0  # calls with wrong arguments, however these calls ended

    def __add__(self, other: "Answers") -> "Answers":
        return Answers(
            self.accepted + other.accepted, self.refused + other.refused, self.wrong + other.wrong
        )


@dataclass
class Record:
    id: str  # pytest's node id
    part: str
    number: str
    name: str  # the title that a student sees
    points: float
    visibility: str  # when students see the result of the check on Gradescope
    status: str = NOT_RUN
    finding: Finding = Finding("This check was not run.")
    seconds: float = 0.0
    worlds: list[int] = field(default_factory=list)  # the size of each world
    # The sizes of the worlds for which new ranks were started.
    fresh: list[int] = field(default_factory=list)
    in_worlds: float = 0.0  # the part of ``seconds`` that was spent in worlds
    # True if the check itself states its visibility. Otherwise the visibility is the default. A
    # course may choose another visibility for hidden checks that do not state their own.
    visibility_written: bool = True
    is_extra: bool = False  # extra credit, which has its own total
    # how each function answered the calls of this check: see ``check.refusals``
    answers: dict[str, Answers] = field(default_factory=dict)

    @property
    def message(self) -> str:
        return str(self.finding)

    @property
    def score(self) -> float:
        return self.points if self.status == PASSED else 0.0

    def as_dict(self) -> dict:
        """Return the record as plain JSON, to send it from a worker to the process that reports."""
        return asdict(self)

    @classmethod
    def read(cls, found: dict) -> "Record":
        answers = {name: Answers(**own) for name, own in found["answers"].items()}
        return cls(**found | {"finding": Finding.read(found["finding"]), "answers": answers})


def messages(records: Iterable[Record]) -> Iterator[str]:
    """Yield each record's message, or only its headline if an earlier message says the same.

    A message of one line is never shortened. Two messages say the same if they differ only in the
    call. For example, a file that cannot be imported makes all checks of its part say the same.
    """
    said = set()
    for record in records:
        found = record.finding
        what = str(replace(found, call=""))
        is_repeated = what in said and "\n" in what
        yield f"As above: {found.headline}" if is_repeated else record.message
        said.add(what)


def to_do(records: Iterable[Record], statuses: dict[str, str] = TO_DO) -> Iterator[tuple[str, str]]:
    """Yield a pair for each of the ``statuses`` that at least one record has.

    The pair is the status, and a line with the numbers of the problems in the assignment that have
    checks with this status.
    """
    numbers: dict[str, list[str]] = {status: [] for status in statuses}
    for record in records:
        if record.status in numbers:
            numbers[record.status].append(record.number)
    for status, own in numbers.items():
        if own:
            in_order = sorted(set(own), key=lambda number: [int(n) for n in number.split(".")])
            checks = "1 check" if len(own) == 1 else f"{len(own)} checks"
            problems = "problem" if len(in_order) == 1 else "problems"
            yield status, f"{statuses[status]}, {checks}: {problems} {', '.join(in_order)}"
