"""Reads the outcomes of the checks from the results.json of every graded submission.

A results.json, here called a *document*, may be damaged, or be written by another version of the
grader. Entries that cannot be read are left out and counted, so that a report can mention them.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from grader.check.record import (
    ERROR,
    FAILED,
    NOT_ATTEMPTED,
    NOT_RUN,
    PASSED,
    SKIPPED,
    UNIMPLEMENTED,
)
from grader.course.results import GRADED, SubmissionResult

# If the file of a part was not handed in, the checks of this part fail, and their messages begin
# with these words: see ``intake/staging.py``. Such a check counts as the check of a stub.
NO_FILE = "The submission has no "
STATUSES = (PASSED, FAILED, UNIMPLEMENTED, NOT_ATTEMPTED, SKIPPED, ERROR, NOT_RUN)


@dataclass(frozen=True)
class Check:
    """A check. If documents describe it differently, the document with the most checks is used."""

    id: str
    number: str  # of its problem
    name: str
    points: float
    is_extra: bool = False  # extra credit


@dataclass(frozen=True)
class Outcome:
    """The outcome of one check for one submission. ``message`` may hold text of a student."""

    check: Check
    status: str
    score: float
    message: str
    has_file: bool = True  # whether the submission has the file of the check's part


@dataclass
class GradedSubmission:
    """A graded submission, with the readable part of its results.json."""

    result: SubmissionResult
    outcomes: dict[str, Outcome] = field(default_factory=dict)  # by the id of the check
    unreadable: int = 0  # entries that could not be read
    # The score that the document states. If it states no score, this is None, and the score is the
    # sum of the outcomes.
    score: float | None = None

    @property
    def points(self) -> float:
        """Return the points that count, before anything is taken off for lateness."""
        if self.score is not None:
            return self.score
        return math.fsum(outcome.score for outcome in self.outcomes.values())

    @property
    def has_files(self) -> bool:
        """Return whether the submission has a file of the assignment."""
        outcomes = self.outcomes.values()
        return not outcomes or any(outcome.has_file for outcome in outcomes)

    @property
    def points_kept(self) -> float | None:
        """Return the points after lateness, or None if the lateness is unknown."""
        return self.result.after_lateness(self.points)


@dataclass
class CourseOutcomes:
    """All graded submissions of a course, and all checks that occur in their documents."""

    graded: list[GradedSubmission]
    checks: list[Check]  # sorted by problem, and within a problem as in the documents

    @property
    def best(self) -> float:
        """Return the points of the assignment, without extra credit."""
        return math.fsum(check.points for check in self.checks if not check.is_extra)

    def problems(self) -> dict[str, list[Check]]:
        """Return the checks of each problem, by the number of the problem."""
        found: dict[str, list[Check]] = {}
        for check in self.checks:
            found.setdefault(check.number, []).append(check)
        return found

    def damaged(self) -> list[GradedSubmission]:
        """Return the submissions whose documents have unreadable entries, or no readable entry."""
        return [one for one in self.graded if one.unreadable or not one.outcomes]

    def incomplete(self) -> list[GradedSubmission]:
        """Return the submissions whose documents lack checks that other documents have."""
        return [one for one in self.graded if 0 < len(one.outcomes) < len(self.checks)]

    def versions(self) -> list[str]:
        found = {one.result.version for one in self.graded}
        return sorted(str(version) for version in found if version)


def read(results: Iterable[SubmissionResult]) -> CourseOutcomes:
    """Return the graded submissions among these results, with their checks."""
    graded = [_read(result) for result in results if result.status == GRADED]
    checks: dict[str, Check] = {}
    for one in sorted(graded, key=lambda one: -len(one.outcomes)):
        for id, outcome in one.outcomes.items():
            checks.setdefault(id, outcome.check)
    return CourseOutcomes(graded, sorted(checks.values(), key=lambda check: in_order(check.number)))


def in_order(number: str) -> list[tuple[int, str]]:
    """Return a key that sorts problem 1.10 after problem 1.9."""
    is_digits = [part.isascii() and part.isdigit() and len(part) < 9 for part in number.split(".")]
    return [
        (int(part), "") if whole else (1 << 32, part)
        for part, whole in zip(number.split("."), is_digits)
    ]


def _read(result: SubmissionResult) -> GradedSubmission:
    found = GradedSubmission(result)
    tests = result.document.get("tests") if isinstance(result.document, dict) else None
    if tests is not None:
        found.score = _points(result.document.get("score"))
    for test in tests if isinstance(tests, list) else []:
        outcome = _outcome(test)
        if outcome is None or outcome.check.id in found.outcomes:
            found.unreadable += 1
        else:
            found.outcomes[outcome.check.id] = outcome
    return found


def _outcome(test: object) -> Outcome | None:
    """Return the outcome in an entry of ``tests``, or None if the entry has an unknown form."""
    extra = test.get("extra_data") if isinstance(test, dict) else None
    if not isinstance(test, dict) or not isinstance(extra, dict):
        return None
    words: Sequence[object] = (
        extra.get("check"),
        test.get("number"),
        test.get("name"),
        test.get("output"),
    )
    score, points = _points(test.get("score")), _points(test.get("max_score"))
    if not all(isinstance(word, str) for word in words) or not words[0]:
        return None
    if score is None or points is None or extra.get("status") not in STATUSES:
        return None
    id, number, name, message = map(str, words)
    # The name begins with the problem's title, which the page shows elsewhere.
    is_extra = extra.get("extra_credit") is True
    check = Check(id, number, name.partition(" · ")[2] or name, points, is_extra)
    is_missing = extra["status"] == FAILED and message.startswith(NO_FILE)
    is_left_out = extra["status"] == NOT_ATTEMPTED
    is_untouched = is_missing or is_left_out
    has_file = not (is_missing or (is_left_out and NO_FILE.lower() in message))
    status = UNIMPLEMENTED if is_untouched else extra["status"]
    return Outcome(check, status, score, message, has_file)


def _points(value: object) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e6:
        return float(value)
    return None
