"""Computes how late a submission is, and how much is taken off its score."""

import math
from datetime import timedelta

from grader.course_file import Late
from grader.gradescope.metadata import Upload


def days_late(policy: Late, upload: Upload) -> int:
    """Return how many days late a submission is, after the grace period and the free days.

    A day that has begun counts as a whole day. Return 0 if a date is not known.
    """
    if upload.created is None or upload.due is None:
        return 0
    late = upload.created - upload.due - timedelta(minutes=policy.grace_minutes)
    return max(0, math.ceil(late / timedelta(days=1) - policy.free_days))


def deduction(policy: Late, upload: Upload) -> tuple[float, str]:
    """Return the percentage to take off the score, and a sentence that says how much is taken off.

    Return 0 and "" if nothing is taken off, or if a date is not known.
    """
    if upload.created is None or upload.due is None:
        return 0.0, ""
    late = upload.created - upload.due - timedelta(minutes=policy.grace_minutes)
    if late / timedelta(days=1) > policy.cut_off_days:
        days = _days(policy.cut_off_days)
        return 100.0, (
            f"More than {days} late: no points. "
            "If an earlier submission is worth more, activate it in the submission history."
        )
    late_days = days_late(policy, upload)
    taken = min(late_days * policy.percent_per_day, policy.most_percent)
    sentence = f"Counted as {_days(late_days)} late: {taken:g} percent are taken off the score."
    return taken, sentence if taken else ""


def _days(count: float) -> str:
    return "1 day" if count == 1 else f"{count:g} days"
