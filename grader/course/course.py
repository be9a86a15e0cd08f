"""Grades a course's submissions that have no final result yet, and writes the course's reports."""

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from grader import course_file
from grader.course import outcomes, page, scores, similarity
from grader.course.engine import Engine, WorkersEnded, run
from grader.course.grading import Graded, GraderEnded, Order, version
from grader.course.parcel import TooLarge, pack
from grader.course.results import (
    BROKE,
    FINAL,
    GRADED,
    NO_FILES,
    REFUSED,
    SET_ASIDE,
    WAITING,
    Store,
    SubmissionResult,
)
from grader.course.roster import Person, missing
from grader.course.submissions import Found
from grader.course.view import number_of, untimed, without_files
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
        roster: Sequence[Person],
        settings: Settings,
    ) -> None:
        """Read the existing results."""
        self.store, self.settings = store, settings
        present = [student for one in found for student in one.submission.students]
        self.missing = missing(roster, present)
        self.version = version()
        self.rules = course_file.course()
        self.found = {one.submission.id: one for one in found}
        self.fingerprints: dict[str, str] = {}  # of the submissions that were given to a worker
        self.old: dict[str, SubmissionResult] = {}  # final results that are to be replaced
        self.kept: dict[str, str] = {}  # id → why the old result was not replaced
        self.results = {one.submission.id: self._begin(one) for one in found}

    def _begin(self, one: Found) -> SubmissionResult:
        """Return a submission's result before this run grades anything.

        If the files are too large, the result has the status REFUSED. Otherwise return the existing
        result. If there is none, or if it must be graded again, return an empty result.
        """
        new = SubmissionResult(one.submission, version=self.version)
        try:
            fingerprint = pack(one).fingerprint
        except TooLarge as error:
            self._refuse(new, error)
            return new
        except OSError:
            return new  # the files are read again when the submission is to be graded
        # An old result is used only if the submission's fingerprint has not changed.
        old = self.store.read(one.submission, fingerprint)
        if not old:
            return new
        self._finish(old)
        if self.settings.official and _is_unofficial(old):
            return new
        if self.settings.regrade and old.version != self.version:
            self.old[one.submission.id] = old
            return new
        return old

    def _refuse(self, result: SubmissionResult, error: TooLarge) -> None:
        result.status, result.why = REFUSED, str(error)
        self._finish(result)
        self.store.write(result, "", b"", b"")

    def _finish(self, result: SubmissionResult) -> None:
        """Set the result's ``days_late`` and ``kept_percent`` from the present due date.

        If there is a due date, but the time of the submission is unknown, set both to None.
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
        Raise NoWorker if no worker is left that can grade.
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
                "The course's seed is short. A student who has a report could find the seed by"
                " trying all numbers, and hand in a program that knows the checks' inputs. To get"
                " a long seed, grade into a new folder without SEED=.",
                flush=True,
            )
        began = time.monotonic()
        orders = ((name, partial(self._order, name)) for name in to_go)
        for number, (name, outcome) in enumerate(run(engine, orders), 1):
            result = self.results[name]
            if isinstance(outcome, Graded):
                self._take(result, outcome)
            elif isinstance(outcome, TooLarge):
                self._refuse(result, outcome)
            else:
                self._set_aside(result, outcome)
            left = (time.monotonic() - began) / number * (len(to_go) - number)
            line = _line(result, "the old result is kept" if name in self.kept else "")
            print(f"[{done + number}/{count}] {line}, {_time_left(left)}", flush=True)

    def _order(self, name: str) -> Order:
        """Return the order for a worker. Raise TooLarge or OSError as ``pack`` does."""
        parcel, result = pack(self.found[name]), self.results[name]
        self.fingerprints[name] = parcel.fingerprint
        result.seed = self.store.seed_of(result.submission, parcel.fingerprint)
        return Order(
            parcel,
            result.seed,
            self.version,
            self.settings.seconds,
            self.settings.official,
        )

    def _take(self, result: SubmissionResult, graded: Graded) -> None:
        """Store a worker's result. May raise CannotGradeCourse: see _stop_if_all_break."""
        result.seconds, result.peak_bytes = graded.seconds, graded.peak_bytes
        if graded.exit_code == 0:
            document, why = _document(graded.results), "the grader left no readable results.json"
        else:
            document, why = None, _said(graded)
        if document is None:
            self._fail(result, BROKE, why)
            self._stop_if_all_break(why)
            return
        result.status, result.document = GRADED, document
        [graded_submission] = outcomes.read([result]).graded
        result.why = "" if graded_submission.has_files else NO_FILES
        self._keep(result, graded.results, graded.report)

    def _keep(self, result: SubmissionResult, results: bytes = b"", report: bytes = b"") -> None:
        self._finish(result)
        self.store.write(result, self.fingerprints[result.submission.id], results, report)

    def _fail(self, result: SubmissionResult, status: str, why: str) -> None:
        """Record that a submission could not be graded. If it has an old result, keep the old one.

        If the files could not be read, write nothing into the store: the result that is already
        stored may belong to these files.
        """
        name = result.submission.id
        if name in self.old:
            self.results[name], self.kept[name] = self.old[name], why
            return
        result.status, result.why = status, why
        if name in self.fingerprints:
            self._keep(result)
        else:
            self._finish(result)

    def _stop_if_all_break(self, why: str) -> None:
        """Raise CannotGradeCourse if ENOUGH_BROKEN submissions or more broke because of ``why``.

        Do not raise it if at least one submission has been graded.
        """
        broken = [one.why for one in self.results.values() if one.status == BROKE]
        broken += self.kept.values()
        graded = any(
            one.status == GRADED for name, one in self.results.items() if name not in self.kept
        )
        if not graded and broken.count(why) >= ENOUGH_BROKEN:
            raise CannotGradeCourse(why)

    def _set_aside(self, result: SubmissionResult, error: Exception) -> None:
        """Record that no worker graded a submission, or that the files could not be read."""
        if result.submission.id not in self.fingerprints:
            self._fail(result, BROKE, f"it cannot be read: {error}")
        elif isinstance(error, (GraderEnded, WorkersEnded)):
            self._fail(result, SET_ASIDE, f"tried twice: {error}")
        else:
            self._fail(result, BROKE, f"{type(error).__name__}: {error}")

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
        for sentence in filter(None, (untimed(results), without_files(results))):
            print(printable(sentence))
        if self.missing:
            print(f"{number_of(len(self.missing), 'student')} of the roster handed in nothing.")
        for result in results:
            if result.status not in (GRADED, WAITING):
                print(f"    {result.status}: {result.submission.id}: {printable(result.why)}")
        for id_, why in self.kept.items():
            print(f"    old result kept: {id_}: grading it again failed: {printable(why)}")
        for name in ("scores.csv", "course.html", "similarity/README.txt"):
            print(into / name)
        return 0 if set(counts) <= set(FINAL) and not self.kept else 1


CANNOT_GRADE = "cannot grade: "  # begins the grader's sentence about why it could not grade


def _document(results: bytes) -> dict | None:
    """Return what results.json holds, or None if it is not JSON with an object at the top."""
    try:
        document = json.loads(results)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None


def _said(graded: Graded) -> str:
    if graded.exit_code is None:
        return f"the grader did not end within {graded.seconds:.0f} s"
    lines = graded.said.splitlines() or ["the grader failed without a message"]
    own = next((line for line in lines if line.startswith(CANNOT_GRADE)), lines[-1])
    why = own.removeprefix(CANNOT_GRADE)
    return f"{why}. {WITHOUT_CONFINEMENT}" if why.startswith(UNCONFINED) else why


def _is_unofficial(result: SubmissionResult) -> bool:
    """Return whether student code was not confined in this grading."""
    facts = (result.document or {}).get("extra_data")
    confinement = facts.get("confinement") if isinstance(facts, dict) else None
    return isinstance(confinement, dict) and confinement.get("tier") == "none"


def _line(result: SubmissionResult, outcome: str = "") -> str:
    """Return a submission's line for the terminal.

    If ``outcome`` is empty, the line gives the points, or the status if there are no points.
    """
    name = f"{result.submission.id} {', '.join(map(str, result.submission.students))}"
    if not outcome:
        outcome = f"{points(result.total)} points" if result.status == GRADED else result.status
    return f"{printable(name)[:SHOWN]}: {outcome}, {result.seconds:.0f} s"


def _time_left(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"about {minutes} min left" if minutes else f"{seconds:.0f} s left"
