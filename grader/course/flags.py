"""Finds checks and problems that somebody should look at, and says in words why."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np

from grader.course.item_analysis import SHARE, Item, at_most
from grader.course.message_clusters import MessageCluster
from grader.course.outcomes import CourseOutcomes

FEWEST_SUBMISSIONS = 10  # submissions; fewer say nothing about a check
EASY, HARD = 0.95, 0.05  # shares that pass
STRONG_FAIL = 0.1  # of the strongest; a check that fewer of them fail is not flagged as wrong
FAIL_OR_PASS = 5  # at least so many must fail a check, and so many pass it, to judge it
LOW = 0.1  # a correlation that is low for any check
SPLIT = 0.25  # of the strongest, the share that fails in one way
ALIKE = 0.75  # of these failures, the share that looks alike
MAJORITY = 0.5  # of all who count, the share that fails in one way

# From the most to the least urgent.
KINDS = WRONG, AMBIGUOUS, NOBODY, EVERYBODY = "wrong check?", "ambiguous?", "nearly nobody", "easy"


@dataclass(frozen=True)
class Flag:
    kind: str
    sentence: str


def flags(
    course: CourseOutcomes, items: Sequence[Item], found: Sequence[MessageCluster]
) -> dict[str, list[Flag]]:
    """Return the flags of each check that has any, by its id, the most urgent first."""
    mistakes = _mistakes(found)
    of_check = {}
    for item in items:
        if item.count < FEWEST_SUBMISSIONS:
            continue
        own = [
            mistakes.get((course.graded[member].result.submission.id, item.check.id), "")
            for member in item.members
        ]
        raised = [_wrong(item), _ambiguous(item, own), _extreme(item)]
        if any(raised):
            of_check[item.check.id] = [flag for flag in raised if flag]
    return of_check


def ambiguous_problems(
    course: CourseOutcomes, raised: dict[str, list[Flag]]
) -> dict[str, list[str]]:
    """Return why problems may be ambiguous: for each problem, a sentence per flagged check."""
    reasons: dict[str, list[str]] = {}
    for check in course.checks:
        for flag in raised.get(check.id, []):
            if flag.kind == AMBIGUOUS:
                reasons.setdefault(check.number, []).append(f"{check.name}: {flag.sentence}")
    return reasons


def _mistakes(found: Sequence[MessageCluster]) -> dict[tuple[str, str], str]:
    """Return a name for the mistake of each failure, by submission and check.

    Failures of one cluster are the same mistake if their evidence is equal, too.
    """
    names = {}
    for index, cluster in enumerate(found):
        for failure in cluster.failures:
            key = failure.submission.result.submission.id, failure.outcome.check.id
            names[key] = f"{index} {failure.evidence}"
    return names


def _wrong(item: Item) -> Flag | None:
    """Return a flag if the correlation with all other checks is near zero or negative."""
    r, passed = item.correlation, int(item.passed.sum())
    if r is None or min(passed, item.count - passed) < FAIL_OR_PASS:
        return None
    if at_most(r, item.count) >= LOW:
        return None
    strong, weak = _strongest(item.rest), _strongest(-item.rest)
    if (~item.passed[strong]).mean() < STRONG_FAIL:
        return None
    what = "Strong students fail it where weak ones pass" if r < 0 else (
        "Strong students pass it hardly more often than weak ones")  # fmt: skip
    lost = [f"{int((~item.passed[group]).sum())} of the {int(group.sum())} {name}"
            for group, name in ((strong, "strongest"), (weak, "weakest"))]  # fmt: skip
    return Flag(WRONG, f"{what}: {lost[0]} fail it, and {lost[1]}. Is the check wrong?")


def _ambiguous(item: Item, mistakes: Sequence[str]) -> Flag | None:
    """Return a flag if many strong students, or most students, fail in the same way."""
    strong = _strongest(item.other_parts)
    groups = ((strong, SPLIT, "strongest in other parts"), (strong | True, MAJORITY, "who tried"))
    for group, least, who in groups:
        alike, failed = _most_alike(list(compress(mistakes, group & ~item.passed)))
        size = int(group.sum())
        if alike >= max(FAIL_OR_PASS, least * size) and alike >= ALIKE * failed:
            return Flag(
                AMBIGUOUS,
                f"{alike} of the {size} {who} fail it in the same way. Can the problem be read in"
                " another way, or does the check ask for more than the text?",
            )
    return None


def _extreme(item: Item) -> Flag | None:
    passed = int(item.passed.sum())
    told = f"{passed} of the {item.count} who tried pass it"
    if passed >= EASY * item.count:
        return Flag(EVERYBODY, f"Nearly everybody passes: {told}.")
    if passed <= HARD * item.count:
        return Flag(NOBODY, f"Nearly nobody passes: {told}.")
    return None


def _strongest(rest: np.ndarray) -> np.ndarray:
    """Return which submissions are among the 27 % with the best rest, ties included.

    Submissions without a rest (NaN) are not among them.
    """
    known = rest[~np.isnan(rest)]
    return rest >= (np.quantile(known, 1 - SHARE, method="higher") if known.size else np.inf)


def _most_alike(mistakes: list[str]) -> tuple[int, int]:
    """Return how often the commonest mistake occurs, and how many mistakes there are."""
    return max(Counter(mistakes).values(), default=0), len(mistakes)
