"""Reads a roster: the list of a course's students, as Gradescope, Canvas or Moodle export it."""

import csv
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import permutations
from pathlib import Path

from grader.course.submissions import Student

# The names of columns, in small letters.
NAME = ("name", "student", "full name", "student name")
FIRST, LAST = ("first name", "firstname"), ("last name", "lastname", "surname")
SID = ("sid", "student id", "sis user id", "id number", "id")
EMAIL = ("email", "email address", "sis login id")
ROLE = ("role",)
MOST_WORDS = 5  # of a name whose words are taken in every order
DELIMITERS = ",;\t"  # a spreadsheet writes a semicolon where a comma is the decimal separator
# Rows of Canvas's gradebook that look like students, in small letters.
NOT_STUDENTS = ("points possible", "student, test")


@dataclass(frozen=True)
class Person(Student):
    """A student on a roster. ``numbers`` are all numbers of the student, including ``sid``.

    Canvas's gradebook, for example, has the school's number and a number that only Canvas uses.
    """

    numbers: frozenset[str] = frozenset()


class BadRoster(Exception):
    """Raised if a file is no roster. The message is a sentence for the instructor."""


def read(path: Path) -> list[Person]:
    """Return the students of a CSV file with a header. Leave out staff.

    Raise BadRoster if the file cannot be read, or has no column for a name, a number or an email.
    """
    try:
        text = path.read_text(encoding="utf-8-sig", errors="replace")
    except OSError as error:
        raise BadRoster(f"{path} cannot be read: {error.strerror}") from None
    try:
        header, lines = _table(text)
    except csv.Error as error:
        raise BadRoster(f"{path} is no CSV file: {error}") from None
    if not header:
        raise BadRoster(
            f"{path} has no column for a name, a student's number or an email. The first line must"
            " name the columns"
        )
    students = []
    for cells in lines:
        line = dict(zip(header, (cell.strip() for cell in cells)))
        name = _first(line, NAME) or f"{_first(line, FIRST)} {_first(line, LAST)}".strip()
        if name.lower() in NOT_STUDENTS:
            continue
        numbers = frozenset(line[column] for column in SID if line.get(column))
        student = Person(name, _first(line, SID), _first(line, EMAIL), numbers)
        if _first(line, ROLE).lower() in ("", "student") and (student.sid or student.email or name):
            students.append(student)
    return students


def _table(text: str) -> tuple[list[str], list[list[str]]]:
    """Return the names of the columns in small letters, and the other lines.

    Try one delimiter after the other, until the header has a known column. If no delimiter gives a
    known column, both lists are empty. Raise csv.Error if the text is no CSV.
    """
    for delimiter in DELIMITERS:
        lines = list(csv.reader(text.splitlines(), delimiter=delimiter))
        header = [cell.strip().lower() for cell in lines[0]] if lines else []
        if any(name in header for name in (*NAME, *SID, *EMAIL, *LAST)):
            return header, lines[1:]
    return [], []


def _first(line: dict[str, str], names: Iterable[str]) -> str:
    return next((line[name] for name in names if line.get(name)), "")


def missing(roster: Sequence[Person], present: Sequence[Student]) -> list[Person]:
    """Return the students who are on the roster but not in ``present``.

    An entry of the roster and an entry of ``present`` are the same person if their numbers or
    emails are equal. If the numbers of all entries of ``present`` are on the roster, nothing else
    is compared. Otherwise names are compared, too, but only if one of the two entries has no email.
    For example, Canvas's file names contain the student's name and a number that only Canvas uses,
    but no email.
    """
    sids = {one.sid for one in present if one.sid}
    if present and {one.sid for one in present} <= {n for one in roster for n in one.numbers}:
        return [one for one in roster if not one.numbers & sids]
    emails = {one.email.lower() for one in present if one.email}
    names = {form for one in present for form in _forms(one.name)}
    without_email = {form for one in present if not one.email for form in _forms(one.name)}
    return [
        one
        for one in roster
        if not one.numbers & sids
        and one.email.lower() not in emails
        and not _forms(one.name) & (without_email if one.email else names)
    ]


def _forms(name: str) -> set[str]:
    """Return the letters and digits of a name, with its words in every order.

    So "Doe, Jane", "Jane Doe" and Canvas's "doejane" have a form in common. A name of more than
    ``MOST_WORDS`` words is taken in alphabetical order, and in each order that moves its first
    words to the end. In names of files from macOS, an accent can be a separate character. So an
    accent is first joined with its letter.
    """
    words = re.findall(r"[^\W_]+", unicodedata.normalize("NFC", name.lower()))
    turned = (words[i:] + words[:i] for i in range(len(words)))
    orders = permutations(words) if len(words) <= MOST_WORDS else (*turned, sorted(words))
    return {"".join(order) for order in orders if words}
