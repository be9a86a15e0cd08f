"""Make up a course from a seed: plausible results, with planted faults if asked for.

Whether a student passes a check follows Rasch's model: it depends on the student's ability and on
the check's difficulty. Failures of a problem share a few mistakes, some of them common.
"""

from dataclasses import dataclass

import numpy as np

from grader.assignment import PARTS
from grader.check.record import FAILED, PASSED, UNIMPLEMENTED
from grader.course.results import BROKE, GRADED, REFUSED, SubmissionResult
from grader.course.submissions import Student, Submission

# Extra credit is left out, because the number of wrong marks was measured with these checks.
PROBLEMS = [
    (number, title)
    for part in PARTS.values()
    if not part.is_extra
    for number, title in part.problems.items()
]
PER_PROBLEM = 6
MISTAKES = (
    "the result is wrong on every rank. On rank {a}: first differs at [{a}]: expected {x}, got {y}"
    "\n        expected [{x}, 1]\n        got      [{y}, 1]\nLikely: the terms of one rank are missing",
    "rank {a} raised RuntimeError: mistake B of {n} with “{y}”\n    file.py:{a} in f: x = {y}",
    "rank {a} modified its input. Inputs must stay unchanged; work on a copy.",
    "the gradient is wrong on every rank. On rank {a}: expected {x}, got {y}\n        expected [{x}]"
    "\n        got      [{y}]",
)
OTHER_READING = (
    "the shape is wrong: expected ({a}, 4), got (4, {a})\nLikely: rows and columns of {n}"
)


@dataclass(frozen=True)
class Planted:
    """The faults of a course. Each is the name of a check, or of a problem; "" is no fault."""

    wrong_check: str = ""
    ambiguous_problem: str = ""


def check_name(number: str, index: int) -> str:
    return f"tests/test_x.py::test_{number.replace('.', '_')}[{index}]"


def make(seed: int, size: int = 300, planted: Planted = Planted()) -> list[SubmissionResult]:
    rng = np.random.default_rng(seed)
    difficulty = rng.normal(-0.8, 0.9, (len(PROBLEMS), PER_PROBLEM))
    return [_result(rng, index, difficulty, planted) for index in range(size)]


def document(tests: list[dict]) -> dict:
    return {"tests": tests, "extra_data": {"seed": "7"}}


def entry(id: str, number: str, status: str, output: str = "Passed.", points: float = 1.0) -> dict:
    return {
        "number": number,
        "name": f"{dict(PROBLEMS).get(number, '')} · does what {id} says",
        "score": points if status == PASSED else 0.0,
        "max_score": points,
        "status": "passed" if status == PASSED else "failed",
        "output": output,
        "extra_data": {"check": id, "status": status},
    }


def result(tests: list[dict], id: str = "1", name: str = "Ada", **more) -> SubmissionResult:
    submission = Submission(id, (Student(name, f"s{id}", f"{id}@example.org"),))
    return SubmissionResult(
        submission, GRADED, document=document(tests), version="1.0.0", seed="7", **more
    )


def _result(
    rng: np.random.Generator, index: int, difficulty: np.ndarray, planted: Planted
) -> SubmissionResult:
    ability, fate = rng.normal(0, 1.2), rng.random()
    # Some students give up, the weaker ones more often. Some leave out single problems.
    last = len(PROBLEMS) - (rng.integers(0, 22) if rng.normal(ability, 1) < -0.8 else 0)
    tests = []
    for row, (number, _) in enumerate(PROBLEMS):
        if row >= last or rng.random() < 0.04:
            for i in range(PER_PROBLEM):
                stub = "Not implemented yet: Problem"
                tests.append(entry(check_name(number, i), number, UNIMPLEMENTED, stub, 0.5))
            continue
        tests += _problem(rng, number, ability - difficulty[row], planted, ability)
    days = float(rng.integers(1, 4)) if rng.random() < 0.15 else 0.0
    made = result(
        tests,
        f"{1000 + index}",
        f"Student {index}",
        seconds=float(rng.gamma(9, 5)),
        peak_bytes=int(rng.gamma(30, 3e7)),
        days_late=days,
        kept_percent=100 - 10 * days,
    )
    if fate < 0.01:
        made.status, made.document = (REFUSED, BROKE)[int(fate < 0.005)], {}
        made.why = "The zip holds no file that is asked for."
    return made


def _problem(
    rng: np.random.Generator, number: str, ahead: np.ndarray, planted: Planted, ability: float
) -> list[dict]:
    # How well a student understands a problem affects all checks of this problem.
    understood, reads_otherwise = rng.normal(0, 0.6), rng.random() < 0.5
    usual = rng.choice(len(MISTAKES), p=[0.4, 0.25, 0.15, 0.2])
    tests = []
    for i, advantage in enumerate(ahead):
        id = check_name(number, i)
        chance = 1 / (1 + np.exp(-1.5 * (advantage + understood)))
        if id == planted.wrong_check:
            chance = 0.75 - 0.45 / (1 + np.exp(-3 * ability))
        words = {"a": rng.integers(0, 4), "x": rng.normal(), "y": rng.normal(), "n": number}
        mistake = usual if rng.random() < 0.6 else rng.integers(0, len(MISTAKES))
        message = MISTAKES[mistake].format(**words)
        passed = rng.random() < chance
        if number == planted.ambiguous_problem and reads_otherwise and i >= 3:
            passed, message = False, OTHER_READING.format(**words)
        output = "Passed." if passed else f"f(float32 (4, 4)) on {words['a'] + 1} ranks\n{message}"
        tests.append(entry(id, number, PASSED if passed else FAILED, output, 0.5))
    return tests
