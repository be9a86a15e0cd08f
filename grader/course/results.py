"""Defines the result of grading one submission of a course."""

from dataclasses import dataclass, field

from grader.course.submissions import Submission

GRADED = "graded"
REFUSED = "refused"  # the submission cannot be graded, for example because the zip is broken
BROKE = "broke"  # the grader itself failed or ran out of time: somebody has to look
SET_ASIDE = "set aside"  # the submission ended two workers
WAITING = "waiting"  # not graded yet


@dataclass
class Result:
    """The result of one submission. Everything in it may hold text that a student wrote."""

    submission: Submission
    status: str = WAITING
    why: str = ""  # a sentence, unless the status is GRADED
    seed: int = 0
    version: str = ""  # of the grader
    seconds: float = 0.0
    peak_bytes: int = 0  # memory of the grading with all its ranks
    days_late: float = 0.0  # whole days, as the course counts them
    kept_percent: float = 100.0  # of the points, after lateness
    document: dict = field(default_factory=dict)  # the results.json of GRADED, else empty
