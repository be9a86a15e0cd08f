"""One upload on Gradescope: what run_autograder runs. Grade, and fit the result to the platform and the course's settings.

The platform's layout lies under ``/autograder``, or wherever ``AUTOGRADER_ROOT`` says. Whatever is wrong with
submission_metadata.json or settings.ini is a note for the instructor, never a reason not to grade.
"""

import json
import math
import os
import subprocess
import sys
from configparser import ConfigParser
from configparser import Error as IniError
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from grader.reports import results

HERE = Path(__file__).resolve().parents[2]
VISIBILITIES = ("visible", "after_due_date", "after_published", "hidden")
DEFAULTS = {
    "grading": {"hidden_checks": "after_published", "seconds": "480", "confined": "yes"},
    "late": {"percent_per_day": "0", "free_days": "0"},
    "limit": {"submissions": "0", "hours": "24"},
    "leaderboard": {"show": "no"},
}


@dataclass
class Settings:
    """``settings.ini``. What is wrong in it is replaced by the default, and ``complaints`` say so."""

    hidden_checks: str = "after_published"
    seconds: float = 480.0
    confined: bool = True
    late_percent: float = 0.0
    free_days: float = 0.0
    most: int = 0
    hours: float = 24.0
    leaderboard: bool = False
    complaints: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> "Settings":
        settings, ini = cls(), ConfigParser(interpolation=None)
        ini.read_dict(DEFAULTS)
        try:
            ini.read_string(path.read_text())
        except (OSError, UnicodeDecodeError, IniError) as error:
            settings.complaints.append(f"{path.name} cannot be read ({type(error).__name__}): the defaults are used")
            ini = ConfigParser(interpolation=None)
            ini.read_dict(DEFAULTS)

        def take(section: str, key: str, read, good, name: str) -> None:
            try:
                value = read(section, key)
                if not good(value):
                    raise ValueError
                setattr(settings, name, value)
            except ValueError:
                wrong = ini.get(section, key)
                settings.complaints.append(f"{path.name}: {key} = {wrong!r} is not possible: the default is used")

        take("grading", "hidden_checks", ini.get, VISIBILITIES.__contains__, "hidden_checks")
        take("grading", "seconds", ini.getfloat, lambda s: 0 < s < math.inf, "seconds")
        take("grading", "confined", ini.getboolean, lambda _: True, "confined")
        take("late", "percent_per_day", ini.getfloat, lambda p: 0 <= p <= 100, "late_percent")
        take("late", "free_days", ini.getfloat, lambda d: 0 <= d < math.inf, "free_days")
        take("limit", "submissions", ini.getint, lambda n: n >= 0, "most")
        take("limit", "hours", ini.getfloat, lambda h: 0 < h < math.inf, "hours")
        take("leaderboard", "show", ini.getboolean, lambda _: True, "leaderboard")
        return settings


@dataclass
class Upload:
    """What submission_metadata.json says of this submission, as far as it says it."""

    created: datetime | None = None
    due: datetime | None = None
    earlier: list[dict] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> "Upload":
        try:
            document = json.loads(path.read_text())
        except (OSError, ValueError, RecursionError):
            return cls()
        if not isinstance(document, dict):
            return cls()
        assignment, earlier = document.get("assignment"), document.get("previous_submissions")
        due = assignment.get("due_date") if isinstance(assignment, dict) else None
        earlier = [one for one in earlier if isinstance(one, dict)] if isinstance(earlier, list) else []
        return cls(_time(document.get("created_at")), _time(due), earlier)

    def days_late(self, free: float) -> int:
        """Days begun after the due date and the free days. 0 where a date is not known."""
        if not (self.created and self.due):
            return 0
        return max(0, math.ceil((self.created - self.due) / timedelta(days=1) - free))

    def within(self, hours: float) -> list[dict]:
        """The earlier submissions that were graded in so many hours before this one, the oldest first."""
        if not self.created:
            return []
        timed = [(_time(one.get("submission_time")), one) for one in self.earlier]
        since = self.created - timedelta(hours=hours)
        recent = [(when, i, one) for i, (when, one) in enumerate(timed) if when and since < when < self.created]
        return [one for _, _, one in sorted(recent, key=lambda entry: entry[:2]) if not _was_limited(one)]


def _time(text: Any) -> datetime | None:
    """A time with its zone; None for anything else."""
    try:
        found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except (ValueError, AttributeError):
        return None
    return found if found.tzinfo else None


def _was_limited(submission: dict) -> bool:
    """Whether this one was not graded, because there had been too many."""
    found = submission.get("results")
    extra = found.get("extra_data") if isinstance(found, dict) else None
    return isinstance(extra, dict) and bool(extra.get("not_graded"))


def main() -> int:
    root = Path(os.environ.get("AUTOGRADER_ROOT", "/autograder"))
    target = root / "results" / "results.json"
    settings, upload = Settings.read(HERE / "settings.ini"), Upload.read(root / "submission_metadata.json")
    for complaint in settings.complaints:  # standard output is the instructors'
        print(complaint)
    target.parent.mkdir(parents=True, exist_ok=True)
    if settings.most and (refused := too_many(settings, upload)):
        results.write(target, refused)
        return 0
    command = [sys.executable, "-m", "grader", str(root / "submission"), "--results", str(target)]
    command += ["--seconds", f"{settings.seconds:g}", *(["--official"] if settings.confined else [])]
    code = subprocess.run(command, cwd=HERE, stdin=subprocess.DEVNULL).returncode
    try:
        document = json.loads(target.read_text())
    except (OSError, ValueError):
        return code or 1  # no result of ours: the platform tells the instructor that the autograder failed
    results.write(target, fit(document, settings, upload))
    return code


def too_many(settings: Settings, upload: Upload) -> dict | None:
    """The results of the submission before, where there have been as many as are allowed and these are known."""
    recent = upload.within(settings.hours)
    last = next((one["results"] for one in reversed(upload.earlier) if isinstance(one.get("results"), dict)), None)
    if len(recent) < settings.most or not last or not isinstance(last.get("tests"), list):
        return None
    again = _time(recent[-settings.most].get("submission_time")) + timedelta(hours=settings.hours)
    note = (
        f"Not graded: {settings.most} submissions in {settings.hours:g} hours are graded, and this is one more. "
        f"These are the results of an earlier one. The next can be graded from {again:%Y-%m-%d %H:%M %Z} on."
    )
    extra = last.get("extra_data") if isinstance(last.get("extra_data"), dict) else {}
    return last | {"output": f"{note}\n{last.get('output', '')}".strip(), "extra_data": extra | {"not_graded": True}}


def fit(document: dict, settings: Settings, upload: Upload) -> dict:
    """The grader's results with the course's settings applied."""
    for test in document["tests"]:
        if test["visibility"] != "visible":
            test["visibility"] = settings.hidden_checks
    points = sum(test["score"] for test in document["tests"])
    late = upload.days_late(settings.free_days) if settings.late_percent else 0
    if late:
        kept = max(0.0, 1 - late * settings.late_percent / 100)
        document["score"] = round(points * kept, 3)
        days = "1 day" if late == 1 else f"{late} days"
        note = f"{days} late: {100 * (1 - kept):g} percent are taken off the score."
        document["output"] = f"{note}\n{document['output']}".strip()
    if settings.leaderboard:
        document["leaderboard"] = [
            {"name": "Points", "value": document.get("score", round(points, 3)), "order": "desc"}
        ]
    return document


if __name__ == "__main__":
    sys.exit(main())
