"""Flags the checks and problems that an instructor should look at, and explains why."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np

from grader.course.item_analysis import SHARE, Item, at_most
from grader.course.message_clusters import MessageCluster
from grader.course.outcomes import CourseOutcomes

FEWEST_SUBMISSIONS = 10  # a check for which fewer submissions count is not flagged
# A check is easy if at least the share EASY of submissions passes it. It is hard if at most the
# share HARD passes it.
EASY, HARD = 0.95, 0.05
# A check is flagged as wrong only if at least this share of the strongest submissions fails it.
STRONG_FAIL = 0.1
# A check is flagged as wrong only if at least this many submissions fail it, and at least this many
# pass it. It is flagged as ambiguous only if at least this many submissions fail it in the same
# way.
FAIL_OR_PASS = 5
LOW = 0.1  # a correlation below this number is low for any check
# A check is flagged as ambiguous only if many submissions fail it in the same way. These must be at
# least the share SPLIT of the strongest submissions, or the share MAJORITY of all submissions that
# count for the check (see item_analysis.py). Of all failures of these submissions, at least the
# share ALIKE must be of this kind.
SPLIT = 0.25
ALIKE = 0.75
MAJORITY = 0.5

# The kinds of flags, from the most to the least urgent.
KINDS = WRONG, AMBIGUOUS, NOBODY, EVERYBODY = "wrong check?", "ambiguous?", "nearly nobody", "easy"


@dataclass(frozen=True)
class Flag:
    kind: str
    sentence: str


def flags(
    course: CourseOutcomes, items: Sequence[Item], found: Sequence[MessageCluster]
) -> dict[str, list[Flag]]:
    """Return the flags of each flagged check, by the check's id. The most urgent comes first."""
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
    """Return the problems that may be ambiguous, with a sentence about each ambiguous check."""
    reasons: dict[str, list[str]] = {}
    for check in course.checks:
        for flag in raised.get(check.id, []):
            if flag.kind == AMBIGUOUS:
                reasons.setdefault(check.number, []).append(f"{check.name}: {flag.sentence}")
    return reasons


def _mistakes(found: Sequence[MessageCluster]) -> dict[tuple[str, str], str]:
    """Return a dict from (submission id, check id) to a name of the mistake behind the failure.

    Two failures get the same name if they are in the same cluster and have the same evidence.
    """
    names = {}
    for index, cluster in enumerate(found):
        for failure in cluster.failures:
            key = failure.submission.result.submission.id, failure.outcome.check.id
            names[key] = f"{index} {failure.evidence}"
    return names


def _wrong(item: Item) -> Flag | None:
    """Return a flag if the correlation of a check with all other checks is near zero or negative.

    Return None if the share of the strongest submissions that fail the check is below STRONG_FAIL.
    """
    r, passed = item.correlation, int(item.passed.sum())
    if r is None or min(passed, item.count - passed) < FAIL_OR_PASS:
        return None
    if at_most(r, item.count) >= LOW:
        return None
    strong, weak = _strongest(item.rest), _strongest(-item.rest)
    if (~item.passed[strong]).mean() < STRONG_FAIL:
        return None
    often = "less" if r < 0 else "hardly more"
    what = f"Students who do well in other checks pass this check {often} often than weak students"
    lost = [f"{int((~item.passed[group]).sum())} of the {int(group.sum())} {name}"
            for group, name in ((strong, "strongest"), (weak, "weakest"))]  # fmt: skip
    return Flag(WRONG, f"{what}: {lost[0]} fail it, and {lost[1]} fail it. Is the check wrong?")


def _ambiguous(item: Item, mistakes: Sequence[str]) -> Flag | None:
    """Return a flag if many strong students, or most students, fail in the same way."""
    strong = _strongest(item.other_parts)
    groups = (
        (strong, SPLIT, "students who are strongest in the other parts"),
        (strong | True, MAJORITY, "students who tried"),
    )
    for group, least, who in groups:
        alike, failed = _most_alike(list(compress(mistakes, group & ~item.passed)))
        size = int(group.sum())
        if alike >= max(FAIL_OR_PASS, least * size) and alike >= ALIKE * failed:
            return Flag(
                AMBIGUOUS,
                f"Of the {size} {who}, {alike} fail in the same way. Can the problem be read in"
                " another way, or does the check ask for something that the text does not say?",
            )
    return None


def _extreme(item: Item) -> Flag | None:
    passed = int(item.passed.sum())
    told = f"of the {item.count} students who tried, {passed} pass"
    if passed >= EASY * item.count:
        return Flag(EVERYBODY, f"Nearly everybody passes: {told}.")
    if passed <= HARD * item.count:
        return Flag(NOBODY, f"Nearly nobody passes: {told}.")
    return None


def _strongest(rest: np.ndarray) -> np.ndarray:
    """Return a mask of the 27 % of submissions with the highest ``rest``, ties included.

    ``rest`` is explained in item_analysis.py. A submission whose ``rest`` is NaN is not selected.
    """
    known = rest[~np.isnan(rest)]
    return rest >= (np.quantile(known, 1 - SHARE, method="higher") if known.size else np.inf)


def _most_alike(mistakes: list[str]) -> tuple[int, int]:
    """Return how often the commonest mistake occurs, and the length of the list."""
    return max(Counter(mistakes).values(), default=0), len(mistakes)
