"""Limits how many submissions are graded in a number of hours.

A submission over the limit is refused: it gets the results of the latest submission that was
graded.

The platform gives the time of each earlier submission, and says whether the autograder failed. But
it gives only the results of the latest submission. So in ``extra_data["uploads"]``, our results
contain a list that says which submissions were graded. The next run reads this list. There is no
list if the submission before this one failed or is still running. So an earlier submission can be
missing from all lists. Then we assume that it was graded if, in the hours before it, the number of
graded submissions was below the limit. Only graded submissions use up the limit: refused
submissions and failures of the autograder do not.

When in doubt, a submission is graded. It is always graded, even over the limit, in two cases:

- The autograder runs again for an old submission (a regrade). The platform does not tell us that a
  run is a regrade. We assume a regrade if the run starts ten minutes or more after the upload, if
  our list already contains the submission, or if the platform lists a later submission. If a
  submission was refused at first, and is graded only in a regrade, it does not use up the limit.
- The submission before this one has no results that can be shown again, because it failed, or
  because it is still being graded. A submission that is graded for this reason uses up the limit.
"""

import json
import math
from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from grader.course_file import Limit
from grader.gradescope.metadata import Earlier, Upload, as_time

UPLOADS, NOT_GRADED = "uploads", "not_graded"  # keys of extra_data
# A run that starts at least this long after the upload is a regrade, or the platform is very busy.
AGAIN_AFTER = timedelta(minutes=10)
SAME = timedelta(seconds=1)  # the platform can write the same time with more or fewer digits


@dataclass(frozen=True)
class Past:
    """A submission, and whether it was graded.

    ``graded`` comes from a list in earlier results, or was computed from the other submissions.
    """

    time: datetime
    graded: bool
    id: int | None = None

    def as_dict(self) -> dict:
        return {"id": self.id, "time": self.time.isoformat(), "graded": self.graded}


@dataclass(frozen=True)
class Decision:
    """The decision whether a submission is graded, and the facts that its results must store."""

    past: list[Past] = field(default_factory=list)
    own: Past | None = None  # the entry of this submission in the list
    instead: dict | None = None  # the results to show, if the submission is not graded
    note: str = ""  # tells the instructor why a submission over the limit is graded

    def remember(self, document: dict, graded: bool = True) -> None:
        """Write what is known about all submissions into ``document``.

        ``document`` holds the results of this submission.
        """
        past = [one.as_dict() for one in self.past]
        if self.own:
            past.append(self.own.as_dict() | {"graded": graded and self.own.graded})
        document.setdefault("extra_data", {})[UPLOADS] = past


def decide(limit: Limit, upload: Upload, now: datetime) -> Decision:
    """Decide whether a submission is graded.

    ``now`` is the time at which this run of the autograder starts.
    """
    told = [past for one in upload.others for past in _told(one.results)]
    if upload.created is None:
        return Decision(told)
    window = timedelta(hours=limit.hours)
    past = _concluded(limit, upload.earlier, told)
    kept = [one for one in past if one.time > upload.created - window]
    recent = [one.time for one in kept if one.graded]
    before = next((one for one in told if one.id is not None and one.id == upload.id), None)
    graded = before.graded if before else True
    if not limit.submissions or len(recent) < limit.submissions:
        return Decision(kept, Past(upload.created, graded, upload.id))

    # Submissions that are still being graded might use up the limit later.
    running = [one.time for one in upload.earlier if not (one.scored or one.error)]
    again = _minute(sorted(recent + running)[-limit.submissions] + window).astimezone(
        upload.created.tzinfo
    )
    shown = next((one.results for one in reversed(upload.earlier) if _can_be_shown(one)), None)
    reason = ""
    if now - upload.created >= AGAIN_AFTER:
        reason = (
            "the autograder started 10 minutes or more after the upload, so this is probably a"
            " regrade"
        )
        graded = before is not None and before.graded
    elif before or len(upload.earlier) < len(upload.others):
        reason = (
            "the autograder has run for this submission before, or there is a later submission, so"
            " this is probably a regrade"
        )
    elif shown is None:
        reason = "no earlier submission has results that can be shown again"
    if shown is None or reason:
        limit_ = f"{limit.submissions} in {_hours(limit)}"
        note = f"Graded, although the limit ({limit_}) is reached: {reason}."
        return Decision(kept, Past(upload.created, graded, upload.id), note=note)

    instead = _shown_again(shown, limit, again)
    decision = Decision(kept, Past(upload.created, False, upload.id), instead)
    decision.remember(instead)
    return decision


def _told(results: dict | None) -> list[Past]:
    """Return the list of submissions from the results of one earlier submission.

    This module writes such a list into each submission's results. Entries of another form are left
    out.
    """
    extra = results.get("extra_data") if results else None
    uploads = extra.get(UPLOADS) if isinstance(extra, dict) else None
    found = []
    for one in uploads if isinstance(uploads, list) else []:
        time = as_time(one.get("time")) if isinstance(one, dict) else None
        if time and isinstance(one.get("graded"), bool):
            found.append(
                Past(time, one["graded"], one["id"] if type(one.get("id")) is int else None)
            )
    return found


def _concluded(limit: Limit, earlier: list[Earlier], told: list[Past]) -> list[Past]:
    """Return for each earlier submission whether it was graded.

    If the autograder failed, the submission was not graded. Otherwise ``told`` decides. If ``told``
    lacks the submission, it counts as graded if the earlier submissions did not use up the limit.
    Submissions that ``told`` lacks, and that are still being graded, are left out.
    """
    window, found = timedelta(hours=limit.hours), []
    graded_at: list[datetime] = []
    told = sorted(told, key=lambda past: past.time)
    for one in earlier:
        known = _nearest(told, one.time)
        if one.error:
            graded = False
        elif known:
            graded = known.graded
        elif not one.scored:
            continue
        else:
            count = len(graded_at) - bisect_right(graded_at, one.time - window)
            graded = not limit.submissions or count < limit.submissions
        found.append(Past(one.time, graded, known.id if known else None))
        if graded:
            graded_at.append(one.time)
    return found


def _nearest(told: list[Past], time: datetime) -> Past | None:
    """Return the past submission whose time is nearest to ``time``.

    Return None if the times differ by ``SAME`` or more. ``told`` has the past submissions, sorted
    by time.
    """
    at = bisect_left(told, time, key=lambda past: past.time)
    near = [past for past in told[max(0, at - 1) : at + 1] if abs(past.time - time) < SAME]
    return min(near, key=lambda past: abs(past.time - time), default=None)


def _can_be_shown(one: Earlier) -> bool:
    """Return whether a submission's results come from a grading and can be written as JSON."""
    tests = one.results.get("tests") if one.results and not one.error else None
    if not isinstance(tests, list) or not tests:
        return False
    if not all(isinstance(test, dict) and _is_number(test.get("score")) for test in tests):
        return False
    try:
        json.dumps(one.results, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError):  # NaN, a lone surrogate, a thousand nested lists
        return False
    return True


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _shown_again(last: dict, limit: Limit, again: datetime) -> dict:
    output = last["output"] if isinstance(last.get("output"), str) else ""
    extra = last["extra_data"] if isinstance(last.get("extra_data"), dict) else {}
    if extra.get(NOT_GRADED):  # the first line of ``output`` is the note of an earlier refusal
        output = output.partition("\n")[2]
    count = "1 submission" if limit.submissions == 1 else f"{limit.submissions} submissions"
    note = (
        f"Not graded: the limit is {count} in {_hours(limit)}. "
        f"These are the results of your latest graded submission. "
        f"Your next submission is graded if you upload it at {again:%Y-%m-%d %H:%M %Z} or later."
    )
    return last | {"output": f"{note}\n{output}".strip(), "extra_data": extra | {NOT_GRADED: True}}


def _minute(time: datetime) -> datetime:
    """Return the first whole minute that is not before this time.

    The time is printed without its seconds. If it were rounded down, it would be too early.
    """
    whole = time.replace(second=0, microsecond=0)
    return whole if whole == time else whole + timedelta(minutes=1)


def _hours(limit: Limit) -> str:
    return "1 hour" if limit.hours == 1 else f"{limit.hours:g} hours"
