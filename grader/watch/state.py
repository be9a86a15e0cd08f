"""Keeps what `make watch` knows: the record of each check, and the code of the student."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from grader.check.record import ERROR, FAILED, NOT_ATTEMPTED, PASSED, UNIMPLEMENTED, Record
from grader.check.selection import functions
from grader.course_file import course
from grader.intake.staging import Contents
from grader.session import is_students_copy
from grader.watch.changes import Program, changes, parse

WRONG = (FAILED, ERROR)


@dataclass
class WatchState:
    """The last record of each check, and the checks that have to be run."""

    # The id of each watched check, in the order of the problems, and the record of its last run.
    records: dict[str, Record] = field(default_factory=dict)
    # The checks that have to be run, in this order. Their records may be older than the code.
    waiting: list[str] = field(default_factory=list)
    # The checks that failed when they were last run, the newest failure last.
    failed: list[str] = field(default_factory=list)
    # ``waiting`` as it was when its order was last decided. Checks of changed functions come first.
    plan: list[str] = field(default_factory=list)
    # problem → its functions. A function that a student deletes stays here.
    of_problems: dict[str, list[str]] = field(default_factory=functions)
    program: Program = field(default_factory=dict)  # the last valid version of each file
    errors: dict[str, str] = field(default_factory=dict)  # file → why it is not valid Python
    changed: list[str] = field(default_factory=list)  # functions that changed in the last save

    def collect(self, records: Iterable[Record]) -> None:
        """Replace all checks by the checks of these records, and plan to run all of them."""
        self.records = {record.id: record for record in sorted(records, key=_place)}
        self.failed, self.waiting = [], []  # a check that was planned may not exist any more
        self.run_all()

    def run_all(self, problems: Iterable[str] | None = None) -> None:
        """Plan to run all checks, or only the checks of these problems.

        They run before the checks that already wait.
        """
        self._put_first([self.of(problems)])

    def of(self, problems: Iterable[str] | None) -> list[str]:
        """Return the checks of these problems; all checks if ``problems`` is None."""
        chosen = set(self.of_problems) if problems is None else set(problems)
        return [id for id, record in self.records.items() if record.number in chosen]

    def save(self, contents: Contents) -> bool:
        """Compare these files with their last versions, and plan which checks to run first.

        First come the checks of functions that have changed, then the checks that failed in their
        last run (see ``failures``), then the checks of functions that use the changed functions.
        Return True if all files are valid Python. Otherwise return False: no check can be run then.
        """
        program, self.errors = dict(self.program), {}
        for name in course().files:
            try:
                program[name] = parse(contents.texts.get(name, ""))
            except (SyntaxError, ValueError, RecursionError) as error:
                self.errors[name] = _told(name, error)
        names = (name for names in self.of_problems.values() for name in names)
        found = changes(self.program, program, names)
        self.program, self.changed = program, sorted(found.direct)
        direct, indirect = self._checks_of(found.direct), self._checks_of(found.indirect)
        self._put_first([direct, self.failures(), indirect])
        return not self.errors

    def note(self, record: Record) -> None:
        """Store the record of a check that has been run."""
        self.records[record.id] = record
        self.waiting = [id for id in self.waiting if id != record.id]
        self.failed = [id for id in self.failed if id != record.id]
        if record.status in WRONG:
            self.failed.append(record.id)

    def count(self, *statuses: str) -> int:
        return sum(record.status in statuses for record in self.records.values())

    def summary(self) -> str:
        """Return how many checks pass, fail and wait, as one line."""
        counts = [
            (self.count(PASSED), "pass"),
            (self.count(*WRONG), "fail"),
            (self.count(UNIMPLEMENTED), "not implemented"),
            (self.count(NOT_ATTEMPTED), "not attempted"),
            (len(self.waiting), "to run"),
        ]
        told = [f"{count} {what}" for count, what in counts if count]
        kind = "public checks" if is_students_copy() else "checks"
        return f"{len(self.records)} {kind}: {', '.join(told)}"

    def failures(self) -> list[str]:
        """Return the checks that failed in their last run.

        First come the failed checks in ``plan``, in the order of ``plan``. Then come the other
        failed checks, the newest failure first.
        """
        newest = self.failed[::-1]
        places = {check: place for place, check in enumerate(self.plan)}
        return sorted(newest, key=lambda check: places.get(check, len(places)))

    def _checks_of(self, changed: Iterable[str]) -> list[str]:
        """Return the checks of the problems that have one of these functions."""
        changed = set(changed)
        numbers = {number for number, own in self.of_problems.items() if changed & set(own)}
        return [id for id, record in self.records.items() if record.number in numbers]

    def _put_first(self, groups: list[list[str]]) -> None:
        self.waiting = list(dict.fromkeys([id for group in groups for id in group] + self.waiting))
        self.plan = self.waiting


def _place(record: Record) -> list[int]:
    return [int(part) for part in record.number.split(".")]


def _told(name: str, error: Exception) -> str:
    """Return one line about a file that is not valid Python."""
    if isinstance(error, SyntaxError) and error.lineno:
        source = f": {error.text.strip()}" if error.text and error.text.strip() else ""
        return f"{name}, line {error.lineno}: {error.msg}{source}"
    return f"{name} is not valid Python: {error}"
