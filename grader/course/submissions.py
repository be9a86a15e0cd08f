"""Describes a course's submissions: who handed in what and when, and where the files are."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Student:
    """One student. A field is empty if the export or the roster does not give it."""

    name: str = ""
    sid: str = ""  # the student's number at the school or on the platform
    email: str = ""

    def __str__(self) -> str:
        return self.name or self.email or self.sid


@dataclass(frozen=True)
class Submission:
    """The submission of one student or group."""

    id: str  # unique in the course, and safe as the name of a folder
    students: tuple[Student, ...] = ()
    handed_in: str = ""  # ISO 8601 with a time zone, or empty if unknown
    is_marked_late: bool = False  # by Canvas, in the names of the files


@dataclass(frozen=True)
class Found:
    """A submission and the files that belong to it.

    ``paths`` is one directory or zip, or several single files. For single files, ``names`` are the
    names that they had before a platform renamed them.
    """

    submission: Submission
    paths: tuple[Path, ...]
    names: tuple[str, ...] = ()
