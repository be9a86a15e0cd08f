"""Computes how hard each check is, and whether submissions that pass it do well in other checks.

A submission counts for a check if it passed or failed this check, and also passed or failed at
least one other check that is worth points. If a submission still has the stub of a function, the
checks of this function are ignored for this submission. The *rest* of a submission says how well it
did in all other checks that it passed or failed. The rest is the points that it got in these
checks, divided by the points that these checks are worth. One misunderstanding can make several
checks of a part fail. So there is also a rest of *other parts*, which leaves out all checks of the
same part.

``discrimination`` and ``point_biserial`` accept numpy arrays with an entry for each submission.
If the result is not defined, they return None.
"""

import math
from dataclasses import dataclass

import numpy as np

from grader.check.record import FAILED, PASSED, UNIMPLEMENTED
from grader.course.outcomes import Check, CourseOutcomes

SHARE = 0.27  # the share of submissions in the upper group, and in the lower group (Kelley 1939)
TAIL = 0.05  # the share of the normal distribution that lies above Z
Z = 1.645


@dataclass(frozen=True)
class Item:
    """The statistics of one check, and the submissions that count for it.

    ``passed``, ``rest`` and ``other_parts`` have one entry for each submission that counts.
    ``members`` are the indices of these submissions in ``CourseOutcomes.graded``.
    """

    check: Check
    members: np.ndarray
    passed: np.ndarray  # of bool
    rest: np.ndarray  # from 0 to 1
    # Like ``rest``, but only from the checks of other parts. NaN if the submission passed or failed
    # no check of another part that is worth points. If there is only one part, this is ``rest``.
    other_parts: np.ndarray
    unimplemented: int

    @property
    def count(self) -> int:
        return len(self.passed)

    @property
    def difficulty(self) -> float | None:
        """Return the share of submissions that passed, from 0 to 1; None if no submission counts.

        The easiest checks have 1.
        """
        return float(self.passed.mean()) if self.count else None

    @property
    def discrimination(self) -> float | None:
        return discrimination(self.passed, self.rest)

    @property
    def correlation(self) -> float | None:
        return point_biserial(self.passed, self.rest)


def items(course: CourseOutcomes) -> list[Item]:
    """Return the ``Item`` of every check, in the order of ``course.checks``."""
    took_part, passed = _tables(course)
    points = np.array([check.points for check in course.checks])
    got, possible = passed @ points, took_part @ points
    away = {name: _share(passed, took_part, points * of) for name, of in _elsewhere(course).items()}
    found = []
    for column, check in enumerate(course.checks):
        others = possible - took_part[:, column] * points[column]
        members = np.flatnonzero(took_part[:, column] & (others > 1e-9))
        own = passed[members, column]
        rest = (got[members] - own * points[column]) / others[members]
        stubs = sum(
            one.outcomes[check.id].status == UNIMPLEMENTED
            for one in course.graded
            if check.id in one.outcomes
        )
        other_parts = away[_part(check)][members] if away else rest
        found.append(Item(check, members, own, np.round(rest, 9), np.round(other_parts, 9), stubs))
    return found


def _part(check: Check) -> str:
    return check.number.partition(".")[0]


def _elsewhere(course: CourseOutcomes) -> dict[str, np.ndarray]:
    """Return for each part a mask of the checks of other parts, or {} if there is only one part."""
    parts = np.array([_part(check) for check in course.checks])
    return {name: parts != name for name in set(parts)} if len(set(parts)) > 1 else {}


def _share(passed: np.ndarray, took_part: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Return for each submission its points / the possible points, or NaN if none were possible."""
    possible = took_part @ points
    return np.where(possible > 1e-9, passed @ points / np.maximum(possible, 1e-9), np.nan)


def _tables(course: CourseOutcomes) -> tuple[np.ndarray, np.ndarray]:
    """Return two masks, submissions × checks: "passed or failed", and "passed"."""
    status = [
        [
            one.outcomes[check.id].status if check.id in one.outcomes else ""
            for check in course.checks
        ]
        for one in course.graded
    ]
    table = np.array(status, dtype=object).reshape(len(course.graded), len(course.checks))
    return (table == PASSED) | (table == FAILED), table == PASSED


def discrimination(passed: np.ndarray, rest: np.ndarray) -> float | None:
    """Return the share of passes in the upper group, minus the share of passes in the lower group.

    The upper group is the 27 % of submissions with the highest rest, the lower group the 27 % with
    the lowest rest. If several submissions have the same rest, and only some of them fit into a
    group, each of them counts as the same fraction of a submission. So their order does not matter.
    Return None if there is no submission, or if all have the same rest.
    """
    if not len(rest) or rest.min() == rest.max():
        return None
    lower, upper = _group(rest), _group(-rest)
    return float(np.average(passed, weights=upper) - np.average(passed, weights=lower))


def _group(rest: np.ndarray) -> np.ndarray:
    """Return each submission's weight, from 0 to 1, in the group with the smallest rest."""
    values, which, counts = np.unique(rest, return_inverse=True, return_counts=True)
    before = np.cumsum(counts) - counts
    room = np.clip(SHARE * len(rest) - before, 0, counts)
    return (room / counts)[which]


def point_biserial(passed: np.ndarray, rest: np.ndarray) -> float | None:
    """Return Pearson's correlation between passing (1 or 0) and the rest, from −1 to 1.

    Return None if one of the two arrays is constant: all passed, all failed, or all have the same
    rest.
    """
    if not len(rest) or passed.min() == passed.max() or rest.min() == rest.max():
        return None
    return float(np.corrcoef(passed, rest)[0, 1])


def at_most(correlation: float, count: int) -> float:
    """Return an upper bound for the true correlation, if ``count`` submissions were measured.

    The bound is the upper end of a 90 % confidence interval (Fisher's z). Suppose that the true
    correlation is above this bound. Then fewer than 5 % of courses of this size measure
    ``correlation`` or less. With 3 submissions or fewer, the bound is 1.
    """
    if count <= 3:
        return 1.0
    inside = min(max(correlation, -0.999999), 0.999999)
    return math.tanh(math.atanh(inside) + Z / math.sqrt(count - 3))


def quartiles(values: np.ndarray) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile, interpolated linearly."""
    lower, median, upper = np.quantile(values, (0.25, 0.5, 0.75))
    return float(lower), float(median), float(upper)


def histogram(values: np.ndarray, most: float, bins: int) -> list[int]:
    """Return how many values lie in each of ``bins`` equal intervals from 0 to ``most``.

    An interval contains its lower end. The last one also contains ``most`` and all larger values.
    """
    counts, _ = np.histogram(np.clip(values, 0, most), bins=bins, range=(0, most or 1))
    return [int(count) for count in counts]
