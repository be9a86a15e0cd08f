"""Finds the submissions of a course in a platform's export.

A folder or a zip is read in one of four forms:

- Gradescope (*Export Submissions*): ``submission_metadata.yml`` and a folder for each submission.
- Canvas (*Download Submissions*): files such as ``doejane_LATE_4711_98765_ring-1.py``. The name
  consists of the student's name, LATE if the file is late, the user's number, the file's number,
  the file's original name, and the number of the attempt.
- Moodle (*Download all submissions*): folders such as ``Jane Doe_4711_assignsubmission_file_``, or
  files whose names begin like this.
- Anything else: each folder or zip is one submission, and its name is the student's name.

``Export.doubts`` lists everything that belongs to no submission. So no student's work is lost
without notice.

Names and files come from students. So names are made safe before they become ids of submissions.
Nothing from a zip is written outside of the folder for unpacking. The name that a student gave
to a file must not decide whose work the file is, or which form the export has.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import yaml

from grader.course import gradescope_metadata
from grader.course.gradescope_metadata import METADATA
from grader.course.submission_ids import safe_name, unique
from grader.course.submissions import Found, Student, Submission
from grader.course.unpacking import CannotRead, unpack
from grader.intake.found_files import has_listed_files

# A student's name can contain numbers, too. The first two numbers that follow each other are taken
# as the numbers of the user and of the file. ``Export.doubts`` mentions names that can be read in
# two ways.
CANVAS = re.compile(r"(?P<name>.+?)(?P<late>_LATE)?_(?P<user>\d+)_\d+_(?P<file>.+)")
ATTEMPT = re.compile(r"(.+?)-(\d+)(\.[A-Za-z]+)")  # on Canvas, ring-2.py is the third attempt
# The file's name, which the student has chosen, comes last. It can contain a text such as
# ``_4711_assignsubmission_file_`` with another student's number. So the first such text is used.
MOODLE = re.compile(r"(?P<name>.+?)_(?P<user>\d+)_assignsubmission_file_?(?P<file>.*)")
MOODLES = "_assignsubmission_"  # in all names of a Moodle export, also of texts typed online
OWNER = re.compile(r"(?<=_)\d+(?=_assignsubmission_file)")  # a number that may be a student's


@dataclass(frozen=True)
class Export:
    """The submissions in an export. ``doubts`` tell the instructor what to check."""

    found: list[Found]
    doubts: list[str] = field(default_factory=list)


def find(source: Path, unpack_into: Path) -> Export:
    """Return the submissions in ``source``, in the order of their ids, with the doubts.

    A zip is unpacked into the folder ``unpack_into`` first. Raise CannotRead if ``source`` cannot
    be read or has no submissions, and OSError if the zip file cannot be opened.
    """
    if not source.exists():
        raise CannotRead(f"there is no {source}")
    broken: list[str] = []
    if not source.is_dir():
        broken = unpack(source, unpack_into)
        source = unpack_into
    folder = _inner(source)
    try:
        export = _of_gradescope(folder) if (folder / METADATA).is_file() else _by_names(folder)
    except OSError as error:
        raise CannotRead(f"{folder} cannot be read: {error.strerror}") from None
    if not export.found:
        raise CannotRead(
            f"there are no submissions in {source}. Give the path of a platform's export, or of a"
            " folder that has a folder or a zip for each student"
        )
    return Export(
        sorted(export.found, key=lambda one: _natural(one.submission.id)),
        [
            *_doubt("These files of the zip cannot be unpacked", broken),
            *export.doubts,
            *_doubt(
                "These folders have no file of the assignment, and their zips are not read",
                (one.paths[0].name for one in export.found if _hides_zips(one.paths[0])),
            ),
            *_shared_numbers(export.found),
        ],
    )


def _doubt(sentence: str, names: Iterable[str]) -> list[str]:
    """Return a list with one sentence that lists these names, or [] if there are no names."""
    listed = ", ".join(f"“{name}”" for name in names)
    return [f"{sentence}: {listed}."] if listed else []


def _not_taken(paths: Iterable[Path]) -> list[str]:
    return _doubt("These files and folders belong to no submission", (path.name for path in paths))


def _inner(folder: Path) -> Path:
    """Return the folder that has the submissions.

    This is ``folder``, or the only folder inside ``folder``, such as ``assignment_1_export``.
    """
    entries = _visible(folder)
    if len(entries) != 1 or not entries[0].is_dir():
        return folder
    [only] = entries
    is_export = (only / METADATA).is_file() or _holds_submissions(only)
    return only if is_export and not MOODLE.fullmatch(only.name) else folder


def _holds_submissions(folder: Path) -> bool:
    """Return whether a folder has several submissions, and not the files of a single one.

    Entries with names as in an export of Canvas or Moodle are several submissions.
    """
    entries = _visible(folder)
    named = [path for path in entries if CANVAS.fullmatch(path.name) or MOODLE.fullmatch(path.name)]
    rest = [path for path in entries if path not in named]
    is_one = any(_is_python(path) or path.name == "handout" for path in rest)
    several = len([path for path in rest if _may_be_one(path)]) > 1 and not is_one
    return several or len(named) > len(rest)


def _may_be_one(path: Path) -> bool:
    """Return whether a file or folder can be a whole submission."""
    return path.is_dir() or _is_zip(path)


def _is_zip(path: Path) -> bool:
    return path.suffix.lower() == ".zip"


def _is_python(path: Path) -> bool:
    return path.suffix.lower() == ".py"


def _visible(folder: Path) -> list[Path]:
    hidden = (".", "__MACOSX")
    return sorted(path for path in folder.iterdir() if not path.name.startswith(hidden))


def _of_gradescope(folder: Path) -> Export:
    try:
        entries = gradescope_metadata.read(folder / METADATA)
    except (yaml.YAMLError, RecursionError) as error:
        raise CannotRead(f"{folder / METADATA} is no YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(entries, dict):
        raise CannotRead(f"{folder / METADATA} does not list submissions")
    found: dict[str, Found] = {}
    for name, facts in entries.items():
        path = folder / str(name)
        if isinstance(facts, dict) and path.parent == folder and path.is_dir():
            students = tuple(_students(facts.get(":submitters")))
            handed_in = _time(facts.get(":created_at"))
            submission = Submission(safe_name(str(name)), students, handed_in)
            found[str(name)] = Found(submission, (_zip_inside(path),))
    if entries and not found:
        raise CannotRead(f"{folder} has none of the folders that {METADATA} lists")
    without_folder = [str(name) for name in entries if str(name) not in found]
    others = [path for path in _visible(folder) if path.name not in (METADATA, *found)]
    doubts = _doubt(f"{METADATA} lists submissions that have no folder", without_folder)
    return Export(list(found.values()), doubts + _not_taken(others))


def _students(submitters: Any) -> Iterator[Student]:
    for one in submitters if isinstance(submitters, list) else []:
        if isinstance(one, dict):
            name, sid, email = (str(one.get(key) or "") for key in (":name", ":sid", ":email"))
            yield Student(name, sid, email)


def _time(value: Any) -> str:
    """Return a time in the YAML as ISO 8601, or "". A time without a zone is taken as UTC."""
    if isinstance(value, dict):  # an ActiveSupport::TimeWithZone
        value = value.get("utc") or value.get("time")
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value.strip().replace("Z", "+00:00"))
        except ValueError:
            return ""
    if not isinstance(value, datetime):
        return ""
    return (value if value.tzinfo else value.replace(tzinfo=timezone.utc)).isoformat()


def _by_names(folder: Path) -> Export:
    """Return the submissions of an export of Canvas or Moodle, or of plain folders and zips."""
    entries = _visible(folder)
    moodle = {path: match for path in entries if (match := MOODLE.fullmatch(path.name))}
    canvas = {path: match for path in entries if (match := CANVAS.fullmatch(path.name))}
    if not all(path.is_file() for path in canvas):
        canvas = {}
    if moodle and moodle.keys() <= canvas.keys():
        # On Canvas, a student can choose a file name that ends like a file name of Moodle.
        if moodle.keys() == canvas.keys():
            raise CannotRead(
                f"{folder} may come from Canvas or from Moodle: “{min(moodle).name}” could be a"
                " file name of either platform. Make a folder for each student. Put the student's"
                " files into this folder, under the names that the student gave them"
            )
        moodle = {}
    matches = moodle or canvas
    others = [path for path in entries if path not in matches]
    # A platform gives all names of its export the same form. So the folder is not the platform's
    # export if only a few names happen to have this form, such as team_1_2_final.zip.
    rivals = [path for path in others if _may_be_one(path) and MOODLES not in path.name]
    if len(matches) <= len(rivals):
        return _plain(entries, matches)
    for path in moodle:
        _require_one_owner(path)
    export = _grouped([(match, path) for path, match in matches.items()])
    return Export(export.found, export.doubts + _not_taken(others))


def _plain(entries: Sequence[Path], matches: Iterable[Path]) -> Export:
    """Return a submission for each folder and zip.

    ``matches`` are the entries whose names have the form of Canvas or Moodle.
    """
    taken = [path for path in entries if _may_be_one(path)]
    ids = unique(map(_stem, taken))
    found = [
        Found(Submission(id_, (Student(_stem(path)),)), (_zip_inside(path),))
        for id_, path in zip(ids, taken)
    ]
    doubts = _doubt(
        "Each folder and each zip counts as one submission. But these names have the form of names"
        " in an export of Canvas or Moodle",
        (path.name for path in matches),
    )
    return Export(found, doubts + _not_taken(path for path in entries if path not in taken))


def _require_one_owner(path: Path) -> None:
    """Raise CannotRead if an entry of Moodle's export could belong to several students.

    A student's name and a file's name can contain any text, even another student's number.
    """
    owners = list(dict.fromkeys(OWNER.findall(path.name)))
    if len(owners) > 1:
        raise CannotRead(
            f"“{path.name}” may belong to student {' or '.join(owners)}, because students choose"
            " part of this name. It contains “_<number>_assignsubmission_file” with several"
            " numbers. Unpack the export. Rename this file or folder so that its name contains only"
            " the number of its student. Then start the command again"
        )


def _shared_numbers(found: Iterable[Found]) -> list[str]:
    """Return a warning for each student's number that occurs in several submissions."""
    of_number: dict[str, list[str]] = {}
    for one in found:
        for student in one.submission.students:
            if student.sid:
                of_number.setdefault(student.sid, []).append(one.submission.id)
    return [
        f"The student's number {sid} has several submissions: {', '.join(ids)}. Find out who made"
        " each one."
        for sid, ids in of_number.items()
        if len(ids) > 1
    ]


def _stem(path: Path) -> str:
    return path.name if path.is_dir() else path.stem


def _zip_inside(path: Path) -> Path:
    """Return the zip in a folder, if the folder has exactly one zip and no file of the assignment.

    Otherwise return ``path``.
    """
    zips = _zips(path)
    return zips[0] if len(zips) == 1 and not has_listed_files(path) else path


def _zips(path: Path) -> list[Path]:
    """Return the zips in a folder; [] if ``path`` is no folder, or a folder that cannot be read."""
    try:
        inside = _visible(path) if path.is_dir() else []
    except OSError:
        return []
    return [inner for inner in inside if inner.is_file() and _is_zip(inner)]


def _hides_zips(path: Path) -> bool:
    return bool(_zips(path)) and not has_listed_files(path)


def _grouped(matches: list[tuple[re.Match, Path]]) -> Export:
    """Return a submission for each user, with the latest attempt of each file.

    If a user has a folder, this folder is the whole submission. Otherwise, if a user has zips, the
    zip with the latest attempt is the whole submission. The doubts name the user's other files.
    """
    users: dict[tuple[str, str], list[tuple[re.Match, Path]]] = {}
    for match, path in matches:
        users.setdefault((match["name"], match["user"]), []).append((match, path))
    ids = unique(f"{name}-{user}" for name, user in users)
    found, beside = [], []
    for id_, ((name, user), files) in zip(ids, users.items()):
        student = Student(name, sid=user)
        submission = Submission(id_, (student,), is_marked_late=_is_late(files))
        latest = _latest(files)
        paths = [path for _, path in latest.values()]
        if whole := _whole(latest):
            found.append(Found(submission, (_zip_inside(whole),)))
            beside += [path.name for path in paths if path != whole]
        else:
            found.append(Found(submission, tuple(paths), tuple(latest)))
    doubts = _doubt(
        "These files are not graded, because a folder or a zip of the same student counts as the"
        " whole submission",
        beside,
    )
    return Export(found, doubts + _readable_in_two_ways(matches))


def _readable_in_two_ways(matches: list[tuple[re.Match, Path]]) -> list[str]:
    """Return a warning about names of Canvas in which three numbers stand in a row.

    For example, ``team_1_4711_981_ring.py`` may be a file of user 1 or of user 4711.
    """
    names = [path.name for m, path in matches if m.re is CANVAS and re.match(r"\d+_", m["file"])]
    return _doubt("Find out whose files these are, because their names have three numbers", names)


def _is_late(files: list[tuple[re.Match, Path]]) -> bool:
    """Return whether Canvas marks a file of a user as late. Moodle's names have no such mark."""
    return any(match.groupdict().get("late") for match, _ in files)


def _latest(files: list[tuple[re.Match, Path]]) -> dict[str, tuple[int, Path]]:
    """Return the latest attempt of each file of a user: the attempt's number and path.

    The keys are the names of the files before Canvas added the attempt's number. On Moodle, there
    is only one attempt.
    """
    latest: dict[str, tuple[int, Path]] = {}
    for match, path in files:
        name, attempt = match["file"], 0
        # Moodle adds no numbers of attempts.
        if match.re is CANVAS and (numbered := ATTEMPT.fullmatch(name)):
            name, attempt = numbered[1] + numbered[3], int(numbered[2])
        latest[name] = max(latest.get(name, (-1, path)), (attempt, path))
    return latest


def _whole(latest: dict[str, tuple[int, Path]]) -> Path | None:
    """Return the folder or zip that is the whole submission of a user, if there is one."""
    for _, path in latest.values():
        if path.is_dir():
            return path
    zips = [one for one in latest.values() if _is_zip(one[1])]
    return max(zips)[1] if zips else None


def _natural(name: str) -> list:
    """Return a key that sorts submission_9 before submission_10."""
    return [(0, int(w), "") if w.isdigit() else (1, 0, w) for w in re.findall(r"\d+|\D+", name)]
