"""Finds functions that raise a ValueError for right arguments, too.

Some checks only make calls with wrong arguments, and expect a ValueError from each call. A function
that raises a ValueError for all arguments would pass these checks. To prevent this, the grader
counts the calls with right arguments in all checks. If the function refuses more of these calls
than it accepts, its checks with wrong arguments fail.
"""

from collections import defaultdict
from collections.abc import Iterable

from grader.check.record import FAILED, PASSED, Answers, Record
from grader.diagnosis.finding import Finding, Line
from grader.world.report import Raised, Returned, WorldReport


def answers_in(report: WorldReport) -> dict[str, Answers]:
    """Count, for each function, the calls of one world by their outcome.

    A call with right arguments is counted as accepted, or as refused if it raised a ValueError. If
    it failed in another way, it is not counted. A call with wrong arguments is counted as wrong,
    whatever its outcome is.
    """
    found: dict[str, Answers] = defaultdict(Answers)
    for index, call in enumerate(report.calls):
        outcomes = [rank.outcomes.get(index) for rank in report.ranks]
        if call.may_raise:
            found[call.function].wrong += 1
        elif all(isinstance(outcome, Returned) for outcome in outcomes):
            found[call.function].accepted += 1
        elif any(isinstance(outcome, Raised) and outcome.is_value_error for outcome in outcomes):
            found[call.function].refused += 1
    return found


def added(several: Iterable[dict[str, Answers]]) -> dict[str, Answers]:
    """Return the counts of each function, added up over ``several``."""
    total: dict[str, Answers] = defaultdict(Answers)
    for own in several:
        for name, found in own.items():
            total[name] += found
    return dict(total)


def fail_where_right_calls_are_refused(records: Iterable[Record]) -> None:
    """Fail a check with wrong arguments if its function also refuses most right arguments.

    If no check calls the function with right arguments, nothing changes. A result that students see
    immediately depends only on other results that they see immediately.
    """
    records = list(records)
    of_all = added(record.answers for record in records)
    of_visible = added(record.answers for record in records if record.visibility == "visible")
    for record in records:
        seen = of_visible if record.visibility == "visible" else of_all
        for name, own in record.answers.items():
            is_refusing = own.wrong and seen[name].refused > seen[name].accepted
            if record.status == PASSED and is_refusing:
                record.status, record.finding = FAILED, _finding(name, seen[name])


def _finding(function: str, total: Answers) -> Finding:
    headline = (
        f"{function} raises a ValueError for wrong arguments, as it should. But with right"
        " arguments it raised a ValueError more often than it returned: it raised"
        f" the error in {total.refused} call{'s' * (total.refused > 1)}, and returned in"
        f" {total.accepted}."
    )
    advice = (
        "Because of this error, other checks of this function failed. Their messages show the"
        " error's text and line. Is one of your conditions true for right arguments, or does the"
        " code after the conditions raise the error?"
    )
    return Finding(headline, (Line(advice),))
