"""Defines the result of grading one submission of a course, and keeps results in a folder.

<into>/course.json                       the seed of the course, which is secret
<into>/submissions/<id>/results.json     as `make grade` writes it
<into>/submissions/<id>/report.html
<into>/submissions/<id>/result.json      all other facts; written last, after the other files
"""

import hashlib
import json
import math
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path

from grader.atomic_write import written_whole
from grader.course.submissions import Submission
from grader.reports.results_json import points_of

GRADED = "graded"
REFUSED = "refused"  # the submission is too large
# The submission's files cannot be read, or the grader could not grade them, or ran out of time. An
# instructor must look at the submission.
BROKE = "broke"
SET_ASIDE = "set aside"  # two graders or two workers ended while they graded the submission
WAITING = "waiting"  # not graded yet
NO_FILES = "it has none of the assignment's files"
FINAL = (GRADED, REFUSED)  # these are not graded again

SEED_BITS = 128  # of the course's seed, and of the seed of each submission
GUESSABLE_BITS = 64  # a seed with fewer bits can be found by trying all of them


@dataclass
class SubmissionResult:
    """The result of one submission. Everything in it may hold text that a student wrote."""

    submission: Submission
    status: str = WAITING
    # The reason for the status. If the status is GRADED, this is NO_FILES or empty.
    why: str = ""
    seed: str = ""  # in decimal; text, because many readers of JSON round large numbers
    version: str = ""  # of the grader
    seconds: float = 0.0
    peak_bytes: int = 0  # memory of the grading with all its ranks
    days_late: float | None = 0.0  # whole days, as the course counts them; None if unknown
    kept_percent: float | None = 100.0  # of the points, after lateness; None if unknown
    document: dict = field(default_factory=dict)  # results.json if the status is GRADED, else empty

    @property
    def tests(self) -> list[dict]:
        return self.document.get("tests", [])

    @property
    def total(self) -> float:
        """Return the points before anything is taken off for lateness."""
        return points_of(self.document)[0] if self.document else 0.0

    @property
    def total_kept(self) -> float | None:
        return self.after_lateness(self.total)

    def after_lateness(self, points: float) -> float | None:
        """Return the points that are left after lateness, or None if the lateness is unknown."""
        return None if self.kept_percent is None else points * self.kept_percent / 100


class Store:
    """Keeps the results of a course in a folder. Each file is written whole or not at all."""

    def __init__(self, into: Path, seed: int | None) -> None:
        """Open the folder, or make it.

        Raise ValueError if the folder has another seed, or if its course.json is damaged.
        """
        self.into = into
        into.mkdir(parents=True, exist_ok=True)
        file = into / "course.json"
        if file.exists():
            self.seed = _seed(file)
            if seed not in (None, self.seed):
                raise ValueError(
                    f"{into} belongs to a grading with SEED={self.seed}: use this seed, or another"
                    " folder"
                )
        else:
            self.seed = secrets.randbits(SEED_BITS) if seed is None else seed
            with written_whole(file, mode=0o600) as opened:  # students may use the same machine
                opened.write(json.dumps({"seed": str(self.seed)}).encode())

    @property
    def can_be_guessed(self) -> bool:
        """Return whether a student could find the course's seed by trying all numbers."""
        return abs(self.seed) < 1 << GUESSABLE_BITS

    def seed_of(self, submission: Submission, fingerprint: str) -> str:
        """Return the seed of a submission, in decimal.

        This seed depends on the course's seed, the submission's id, and the fingerprint of the
        submitted files. A student's report shows the seed. If a second submission of this student
        got the same seed, its code could compute the inputs of its checks. So changed files get
        another seed, which nobody can compute without the course's seed.
        """
        key = hashlib.blake2b(str(self.seed).encode()).digest()
        which = json.dumps([submission.id, fingerprint]).encode()
        digest = hashlib.blake2b(which, digest_size=SEED_BITS // 8, key=key).digest()
        return str(int.from_bytes(digest, "big"))

    def folder(self, submission: Submission) -> Path:
        return self.into / "submissions" / submission.id

    def read(self, submission: Submission, fingerprint: str) -> SubmissionResult | None:
        """Return the stored result if it is final and has the same fingerprint, else None."""
        folder = self.folder(submission)
        try:
            facts = json.loads((folder / "result.json").read_text())
            document = _document(folder / "results.json") if facts["graded"] else {}
            if facts["fingerprint"] != fingerprint or facts["result"]["status"] not in FINAL:
                return None
            return SubmissionResult(
                **facts["result"]
                | {"submission": submission, "document": document}
                | {"seed": str(facts["result"]["seed"])}  # older versions wrote a number
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None  # missing or damaged, so the submission is graded again

    def write(
        self, result: SubmissionResult, fingerprint: str, results: bytes, report: bytes
    ) -> None:
        folder = self.folder(result.submission)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "result.json").unlink(missing_ok=True)
        for name, content in (("results.json", results), ("report.html", report)):
            if content:
                _write(folder / name, content)
            else:
                (folder / name).unlink(missing_ok=True)
        plain = asdict(result)
        del plain["document"]
        facts = {"graded": bool(results), "fingerprint": fingerprint, "result": plain}
        _write(folder / "result.json", json.dumps(facts, indent=1).encode())


def _seed(file: Path) -> int:
    try:
        return int(json.loads(file.read_text())["seed"])
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"{file} is damaged. Remove it, and repeat the command with SEED=<the course's seed>"
        ) from None


def _document(file: Path) -> dict:
    """Return the content of a results.json.

    If the file does not hold what the scores need, raise OSError, ValueError, KeyError, TypeError
    or AttributeError, depending on the damage.
    """
    document = json.loads(file.read_text())
    tests = document["tests"]
    numbers = [points_of(document)[0], *(test["score"] for test in tests)]
    are_named = all(isinstance(test["number"], str) for test in tests)
    if not (isinstance(tests, list) and are_named and all(map(math.isfinite, numbers))):
        raise ValueError(f"{file} is damaged")
    return document


def _write(file: Path, content: bytes) -> None:
    with written_whole(file) as opened:
        opened.write(content)
