"""Decides what students see of a results document, and cuts a document that is too long.

Most platforms show the whole result immediately. Only Gradescope can hide a check until the grades
are published. For other platforms, the hidden checks of a problem are merged into one entry. This
entry has the sum of their points, but not their names and messages.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby

from grader.assignment import PARTS
from grader.check.failure_message import CALL_LINE
from grader.check.record import (
    ERROR,
    FAILED,
    NOT_ATTEMPTED,
    NOT_RUN,
    PASSED,
    SKIPPED,
    UNIMPLEMENTED,
)
from grader.diagnosis.finding import printable
from grader.reports.summary import points

# The states of checks, worst first. Hidden checks that are shown together have the worst of their
# states.
WORST_FIRST = (FAILED, ERROR, NOT_RUN, UNIMPLEMENTED, NOT_ATTEMPTED, SKIPPED, PASSED)
WRONG = (FAILED, ERROR, NOT_RUN)
SMALLEST = 200  # no message is cut to fewer characters


@dataclass(frozen=True)
class ShownEntry:
    """One check, or the hidden checks of one problem."""

    number: str
    name: str
    score: float
    most: float
    status: str
    message: str
    seconds: float
    states: tuple[str, ...]  # of each check
    check: str = ""  # the id of the check; "" for the hidden checks of a problem

    @property
    def part(self) -> str:
        return next(name for name, part in PARTS.items() if self.number in part.problems)

    @property
    def points(self) -> str:
        return f"{points(self.score)} of {points(self.most)}"

    @property
    def headline(self) -> str:
        """Return the line of the message that says what is wrong.

        This is the first line. If the first line only names the call, it is the second line. If the
        message is empty, return the status.
        """
        lines = [line.strip() for line in self.message.splitlines() if line.strip()]
        if len(lines) > 1 and CALL_LINE.fullmatch(lines[0]):
            return lines[1][:300]
        return (lines[0] if lines else self.status)[:300]


def every_check(document: dict) -> list[ShownEntry]:
    """Return an entry for each check, for people who are allowed to see all checks."""
    return [_entry(test) for test in document["tests"]]


def for_students(document: dict) -> list[ShownEntry]:
    """Return an entry for each visible check, and one for all hidden checks of each problem."""
    found = []
    for number, tests in groupby(document["tests"], key=lambda test: test["number"]):
        of_problem = list(tests)
        hidden = [test for test in of_problem if test["visibility"] != "visible"]
        found += [_entry(test) for test in of_problem if test["visibility"] == "visible"]
        found += [_folded(number, hidden)] if hidden else []
    return found


def notes(document: dict) -> str:
    """Return the notes about the whole submission as printable text.

    The notes may contain names of files, which students choose.
    """
    return printable(document["output"])


def _entry(test: dict) -> ShownEntry:
    about = test["extra_data"]
    return ShownEntry(
        test["number"],
        printable(test["name"]),
        test["score"],
        test["max_score"],
        about["status"],
        printable(test["output"]),
        about["seconds"],
        (about["status"],),
        about["check"],
    )


def _folded(number: str, tests: list[dict]) -> ShownEntry:
    states = [test["extra_data"]["status"] for test in tests]
    title = tests[0]["name"].partition(" · ")[0]
    counts = count_states([state for state in states if state != PASSED])
    rest = " " + ", ".join(f"{count} {state}" for state, count in counts.items()) + "."
    passed = f"{states.count(PASSED)} of {len(tests)} hidden checks passed."
    return ShownEntry(
        number,
        f"{title} · hidden checks",
        sum(test["score"] for test in tests),
        sum(test["max_score"] for test in tests),
        min(states, key=WORST_FIRST.index),
        passed + (rest if counts else ""),
        round(sum(test["extra_data"]["seconds"] for test in tests), 3),
        tuple(states),
    )


def count_states(states: list[str]) -> dict[str, int]:
    """Return the number of checks in each state, without the states that no check has."""
    in_order = (PASSED, *WORST_FIRST)
    return {state: states.count(state) for state in in_order if state in states}


def share(got: float, most: float) -> float:
    """Return the points as a share of the maximum, from 0 to 1."""
    return round(min(1.0, got / most), 6) if most else 0.0


def fitted(document: dict, render: Callable[[dict], str], most_bytes: int) -> str:
    """Return ``render(document)``, with messages cut to fit into ``most_bytes`` bytes of UTF-8.

    A platform cuts a longer text at any place, or refuses the text. In both cases the points are
    lost. No message is cut to fewer than ``SMALLEST`` characters, so the text can still be too
    long.
    """
    longest = max(len(part["output"]) for part in [document, *document["tests"]])
    while len((text := render(document)).encode()) > most_bytes and longest > SMALLEST:
        longest = max(SMALLEST, longest // 2)
        document = document | {
            "output": _cut(document["output"], longest),
            "tests": [
                test | {"output": _cut(test["output"], longest)} for test in document["tests"]
            ],
        }
    return text


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]} […]"
