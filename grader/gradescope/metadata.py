"""Reads and checks submission_metadata.json: the platform's facts about a submission.

Mistakes in the file do not stop the grading. A value that is missing or wrong is left out.
``complaints`` lists the wrong values, and the missing values that every file should have.
"""

import json
import reprlib
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Earlier:
    """Another submission of the same student or group."""

    time: datetime
    error: bool = False  # whether the autograder itself failed
    scored: bool = True  # False while it is being graded
    results: dict | None = None  # the platform gives them only for the latest submission


@dataclass
class Upload:
    """The submission to grade. A value that the platform did not give is None."""

    id: int | None = None
    created: datetime | None = None
    due: datetime | None = None
    others: list[Earlier] = field(default_factory=list)  # the oldest first
    complaints: list[str] = field(default_factory=list)

    @property
    def earlier(self) -> list[Earlier]:
        """Return the submissions before this one.

        If an old submission is graded again, ``others`` may also hold later submissions.
        """
        return [one for one in self.others if self.created and one.time < self.created]

    @classmethod
    def read(cls, path: Path) -> "Upload":
        upload = cls()
        try:
            # If parse_int is not given, json refuses the whole file for an integer of thousands of
            # digits.
            text = path.read_bytes().decode("utf-8-sig", errors="replace")
            document = json.loads(text, parse_int=_integer)
        except (OSError, ValueError, RecursionError) as error:
            upload._complain(f"the file cannot be read ({type(error).__name__})")
            return upload
        upload.id = document.get("id") if isinstance(document, dict) else None
        upload.id = upload.id if type(upload.id) is int else None
        upload.created = upload._time(document, "created_at", needed=True)
        upload.due = upload._due(document)
        upload.others = upload._others(document)
        return upload

    def _complain(self, what: str) -> None:
        self.complaints.append(f"submission_metadata.json: {what}.")

    def _take(self, document: Any, key: str, kind: type) -> Any:
        """Return the value of a key if its type is ``kind``. Otherwise return an empty ``kind``.

        Complain about a value of another type, but not about a value that is null or missing.
        """
        value = document.get(key) if isinstance(document, dict) else None
        if isinstance(value, kind):
            return value
        if value is not None:
            self._complain(f"{key} is not a {kind.__name__}: {reprlib.repr(value)}")
        return kind()

    def _time(self, document: Any, key: str, needed: bool = False) -> datetime | None:
        value = document.get(key) if isinstance(document, dict) else None
        found = as_time(value)
        if found is None and (needed or value is not None):
            self._complain(f"{key} is not a time with a time zone: {reprlib.repr(value)}")
        return found

    def _due(self, document: Any) -> datetime | None:
        """Return the latest of the users' due dates.

        If no user has a due date, return the assignment's due date. If a user has an extension, the
        platform writes a separate due date for this user.
        """
        users = self._take(document, "users", list)
        own = [
            self._time(user.get("assignment"), "due_date")
            for user in users
            if isinstance(user, dict)
        ]
        general = self._time(self._take(document, "assignment", dict), "due_date")
        return max((due for due in own if due), default=general)

    def _others(self, document: Any) -> list[Earlier]:
        found = []
        for one in self._take(document, "previous_submissions", list):
            if time := self._time(one, "submission_time", needed=True):
                results = one.get("results")
                scored = "score" not in one or one["score"] is not None
                found.append(
                    Earlier(
                        time=time,
                        error=bool(one.get("autograder_error")),
                        scored=scored or isinstance(results, dict),
                        results=results if isinstance(results, dict) else None,
                    )
                )
        return sorted(found, key=lambda one: one.time)


def as_time(value: Any) -> datetime | None:
    """Return a time with its time zone, or None for anything else.

    Also return None for years outside of 2000 to 2199. So adding or subtracting days never fails.
    """
    if not isinstance(value, str):
        return None
    try:
        found = datetime.fromisoformat(value.replace("Z", "+00:00"))
    except ValueError:
        return None
    return found if found.utcoffset() is not None and 2000 <= found.year < 2200 else None


def _integer(digits: str) -> int | float:
    return int(digits) if len(digits) < 20 else float(digits)
