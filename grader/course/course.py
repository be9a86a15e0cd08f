"""Grades a course's submissions that have no final result yet, and writes the course's reports."""

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from grader import course_file
from grader.course import page, scores, similarity
from grader.course.engine import Engine, WorkersEnded, run
from grader.course.grading import Graded, GraderEnded, Order, version
from grader.course.parcel import TooLarge, pack
from grader.course.results import (
    BROKE,
    FINAL,
    GRADED,
    REFUSED,
    SET_ASIDE,
    WAITING,
    Store,
    SubmissionResult,
)
from grader.course.roster import missing
from grader.course.submissions import Found, Student
from grader.course.view import number_of, untimed
from grader.diagnosis.finding import printable
from grader.gradescope import late
from grader.gradescope.metadata import Upload, as_time
from grader.reports.summary import points
from grader.session import UNCONFINED

SHOWN = 60  # characters of a name
WITHOUT_CONFINEMENT = (
    "Grade on Linux 5.13 or later. Or add UNCONFINED=1: then student code can read and change your"
    " files"
)
ENOUGH_BROKEN = 3  # if this many submissions break for the same reason, and none is graded, stop


class CannotGradeCourse(Exception):
    """Raised if the course cannot be graded. The message is a sentence for the instructor."""


@dataclass(frozen=True)
class Settings:
    due: datetime | None
    seconds: float  # for all checks of a submission
    official: bool  # refuse to grade if student code cannot be confined
    regrade: bool = False  # grade again what another version of the grader has graded


class CourseRun:
    """All submissions of a course, with their results."""

    def __init__(
        self,
        found: Sequence[Found],
        store: Store,
        roster: Sequence[Student],
        settings: Settings,
        checks_at_a_time: int,
    ) -> None:
        """Read the existing results. Each grading runs ``checks_at_a_time`` checks in parallel."""
        self.store, self.settings, self.checks_at_a_time = store, settings, checks_at_a_time
        present = [student for one in found for student in one.submission.students]
        self.missing = missing(roster, present)
        self.version = version()
        self.rules = course_file.course()
        self.found = {one.submission.id: one for one in found}
        # An old result is used only if the submission's fingerprint has not changed.
        self.fingerprints: dict[str, str] = {}
        self.results = {one.submission.id: self._begin(one) for one in found}

    def _begin(self, one: Found) -> SubmissionResult:
        """Return a submission's result before this run grades anything.

        If the files cannot be packed, the result has the status REFUSED. Otherwise return the
        existing result. If there is none, or if it must be graded again, return an empty result.
        """
        new = SubmissionResult(one.submission, version=self.version)
        try:
            fingerprint = pack(one).fingerprint
        except (TooLarge, OSError) as error:
            why = str(error) if isinstance(error, TooLarge) else f"it cannot be read: {error}"
            new.status, new.why = REFUSED, why
            self._finish(new)
            self.store.write(new, "", b"", b"")
            return new
        self.fingerprints[one.submission.id] = fingerprint
        new.seed = self.store.seed_of(one.submission, fingerprint)
        old = self.store.read(one.submission, fingerprint)
        if not old or (self.settings.regrade and old.version != self.version):
            return new
        self._finish(old)
        return old

    def _finish(self, result: SubmissionResult) -> None:
        """Set the result's ``days_late`` and ``kept_percent`` from the present due date.

        If there is a due date, but no time of the submission, both are unknown.
        """
        upload = Upload(created=as_time(result.submission.handed_in), due=self.settings.due)
        if upload.due and not upload.created:
            result.days_late = result.kept_percent = None
            return
        result.days_late = late.days_late(self.rules.late, upload)
        result.kept_percent = 100 - late.deduction(self.rules.late, upload)[0]

    def grade(self, engine: Engine) -> None:
        """Grade the submissions that have no final result yet.

        Raise CannotGradeCourse if submissions break for the same reason: see _stop_if_all_break.
        Raise NoWorker if no worker is left to grade.
        """
        to_go = [name for name, result in self.results.items() if result.status not in FINAL]
        count, done = len(self.results), len(self.results) - len(to_go)
        print(f"{number_of(count, 'submission')}, {done} graded or refused already.", flush=True)
        if others := sum(one.version != self.version for one in self.results.values()):
            print(
                f"Another version of the grader graded {others} of them. Checks, points or given"
                " files may differ. REGRADE=1 grades these submissions again.",
                flush=True,
            )
        if self.store.can_be_guessed:
            print(
                "The course's seed is short. A student who has a report could find it by trying,"
                " and hand in a program that knows its inputs. For a long seed, grade into a new"
                " folder without SEED=.",
                flush=True,
            )
        began = time.monotonic()
        orders = ((name, partial(self._order, name)) for name in to_go)
        for number, (name, outcome) in enumerate(run(engine, orders), 1):
            result = self.results[name]
            if isinstance(outcome, Graded):
                self._take(result, outcome)
            else:
                self._set_aside(result, outcome)
            left = (time.monotonic() - began) / number * (len(to_go) - number)
            print(f"[{done + number}/{count}] {_line(result)}, {_time_left(left)}", flush=True)

    def _order(self, name: str) -> Order:
        return Order(
            pack(self.found[name]),
            self.results[name].seed,
            self.version,
            self.settings.seconds,
            self.checks_at_a_time,
            self.settings.official,
        )

    def _take(self, result: SubmissionResult, graded: Graded) -> None:
        """Store what a worker sent back. May raise CannotGradeCourse: see _stop_if_all_break."""
        result.seconds, result.peak_bytes = graded.seconds, graded.peak_bytes
        if graded.exit_code == 0:
            result.status, result.why = GRADED, ""
            result.document = json.loads(graded.results)
            self._keep(result, graded.results, graded.report)
        else:
            result.status, result.why = BROKE, _said(graded)
            self._keep(result)
            self._stop_if_all_break(result.why)

    def _keep(self, result: SubmissionResult, results: bytes = b"", report: bytes = b"") -> None:
        self._finish(result)
        self.store.write(result, self.fingerprints[result.submission.id], results, report)

    def _stop_if_all_break(self, why: str) -> None:
        """Raise CannotGradeCourse if ENOUGH_BROKEN submissions or more broke because of ``why``.

        Do not raise it if at least one submission has been graded.
        """
        broken = [one.why for one in self.results.values() if one.status == BROKE]
        graded = any(one.status == GRADED for one in self.results.values())
        if not graded and broken.count(why) >= ENOUGH_BROKEN:
            raise CannotGradeCourse(why)

    def _set_aside(self, result: SubmissionResult, error: Exception) -> None:
        ended = isinstance(error, (GraderEnded, WorkersEnded))
        result.status = SET_ASIDE if ended else BROKE
        result.why = f"tried twice: {error}" if ended else f"{type(error).__name__}: {error}"
        self._keep(result)

    def report(self) -> int:
        """Write the course's files, print where they are, and return the exit code."""
        results = list(self.results.values())
        into = self.store.into
        scores.write(into / "scores.csv", results, self.missing)
        page.write(into / "course.html", self.rules.title, results, self.missing)
        similarity.lay_out(self.found.values(), into / "similarity")
        counts = Counter(result.status for result in results)
        said = ", ".join(f"{count} {status}" for status, count in counts.items())
        print(f"\n{number_of(len(results), 'submission')}: {said}.")
        if sentence := untimed(results):
            print(sentence)
        if self.missing:
            print(f"{number_of(len(self.missing), 'student')} of the roster handed in nothing.")
        for result in results:
            if result.status not in (GRADED, WAITING):
                print(f"    {result.status}: {result.submission.id}: {printable(result.why)}")
        for name in ("scores.csv", "course.html", "similarity/README.txt"):
            print(into / name)
        return 0 if set(counts) <= set(FINAL) else 1


def _said(graded: Graded) -> str:
    if graded.exit_code is None:
        return f"the grader did not end within {graded.seconds:.0f} s"
    lines = graded.said.splitlines() or ["the grader failed without a message"]
    why = lines[-1].removeprefix("cannot grade: ")
    return f"{why}. {WITHOUT_CONFINEMENT}" if why.startswith(UNCONFINED) else why


def _line(result: SubmissionResult) -> str:
    """Return a submission's line for the terminal."""
    name = f"{result.submission.id} {', '.join(map(str, result.submission.students))}"
    outcome = f"{points(result.total)} points" if result.status == GRADED else result.status
    return f"{printable(name)[:SHOWN]}: {outcome}, {result.seconds:.0f} s"


def _time_left(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"about {minutes} min left" if minutes else f"{seconds:.0f} s left"
