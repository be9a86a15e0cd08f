"""Stages a submission: turns a directory or a zip into a private folder.

The folder holds the student's files that the assignment lists, and the modules that are given with
the assignment. The student's other files are not read. No path in an archive decides where a file
is written. If a submission cannot be used, the grader does not fail. Instead the parts of the
submission are *absent*, each with a sentence that says why.
"""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from grader.assignment import FILES, GIVEN, PARTS
from grader.course_file import course
from grader.intake.compiled import compile_all
from grader.intake.found_files import (
    MAX_FILE_BYTES,
    Refused,
    find_in_directory,
    find_in_zip,
    printable_name,
)

ROOT = Path(__file__).resolve().parents[2]
NOT_ATTEMPTED = "Not attempted"  # the first words of the reason, if an optional part was left out
# FUNCTION finds the start of a function. STUB matches a function that has only a docstring and then
# the exception. These are regular expressions, because some texts make Python's parser run out of
# memory.
FUNCTION = re.compile(r"^(?=[ \t]*(?:async )?def )", re.MULTILINE)
STUB = re.compile(r'[^"]*\"\"\"(?:[^"]|"(?!""))*\"\"\"\s*raise NotImplementedError\(\"Problem ')


class NotThere(ValueError):
    """Raised if the submission does not exist.

    The person who started the grader made a mistake, so nothing is graded.
    """


@dataclass
class StagedSubmission:
    """A staged submission. Ranks import from ``folder``.

    ``absent`` maps each part that cannot be run to the reason. ``warnings`` are shown to students
    and instructors. ``imports`` are the modules that the fork server should import.
    """

    folder: Path
    absent: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    imports: list[str] = field(default_factory=list)


def stage_submission(submission: Path, folder: Path) -> StagedSubmission:
    """Fill ``folder`` from the submission, and return what was staged.

    Raise NotThere if the submission does not exist. If it exists, its contents never make this
    function raise an exception.
    """
    if not submission.exists():
        raise NotThere(f"there is no {submission}")
    package = folder / "handout"
    package.mkdir(parents=True)
    for given in (ROOT / "handout" / name for name in GIVEN):
        if given.exists():  # a grader packed for a course has no modules of other parts
            (package / given.name).write_bytes(given.read_bytes())
    found = read(submission)
    for name, text in found.texts.items():
        (package / name).write_text(text, encoding="utf-8")
    imports = compile_all(package)
    # Ranks may run as other users. They must be able to read all files, whatever the umask is here.
    for path in [folder, *folder.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    return StagedSubmission(folder, found.absent, found.warnings, imports)


@dataclass
class Contents:
    """The usable contents of a submission. ``texts`` maps listed files to their text.

    ``absent`` and ``warnings`` are as in a ``StagedSubmission``.
    """

    texts: dict[str, str] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)


def read(submission: Path) -> Contents:
    """Return a submission's contents. Write no files. Bad contents raise no exception."""
    found = Contents()
    try:
        at = find_in_directory(submission) if submission.is_dir() else find_in_zip(submission)
    except (Refused, OSError) as error:
        why = (
            f"it cannot be read ({type(error).__name__})"
            if isinstance(error, OSError)
            else str(error)
        )
        found.absent = {
            name.removesuffix(".py"): f"The submission was refused: {why}."
            for name in course().files
        }
        found.warnings.append(f"The submission was refused: {why}.")
        return found
    files, others = at.files, at.others
    for name in course().files:
        part = name.removesuffix(".py")
        try:
            if reason := _not_attempted(part, files):
                found.absent[part] = reason
            else:
                found.texts[name] = _text(name, files)
        except Refused as error:
            found.absent[part] = f"{error}."
    if not files:
        found.warnings.append(
            f"The submission holds none of the assignment's files ({', '.join(course().files)})."
        )
    if at.elsewhere:
        home = printable_name(f"{at.home}/") if at.home else "the top folder"
        shown = _first_names([f"{place}/" for place in at.elsewhere])
        found.warnings.append(
            f"The files in {home} were graded. These folders also hold files of the assignment,"
            f" which were not graded: {shown}."
        )
    # A copy of handout/ also holds files that the student does not hand in. They are not read, and
    # need no warning.
    known = {path.name for path in (ROOT / "handout").iterdir()}
    if of_other_parts := [name for name in FILES if name in others]:
        shown = ", ".join(of_other_parts)
        found.warnings.append(
            f"These files were not graded, because the course does not take their parts: {shown}."
        )
    if ignored := [name for name in others if name not in {*known, *FILES}]:
        found.warnings.append(
            "These files were ignored, because the assignment does not list them:"
            f" {_first_names(ignored)}."
        )
    return found


def _not_attempted(part: str, files: dict[str, Callable[[], bytes]]) -> str:
    """Return a sentence if a student has left out an optional part, else "".

    The part is left out if its file is missing, or if all functions in it are still stubs. The file
    is not compared with the stubs in ``handout/``, because in a student's copy of the repository
    the student's work is in ``handout/``.
    """
    name = f"{part}.py"
    if not PARTS[part].is_extra or any(other.lower() == name for other in files if other != name):
        return ""
    if name not in files:
        return f"{NOT_ATTEMPTED}: the submission has no {name}, which is extra credit."
    with suppress(Refused, OSError):
        if _is_unwritten(_text(name, files)):
            return f"{NOT_ATTEMPTED}: nothing is written yet in {name}, which is extra credit."
    return ""


def _is_unwritten(text: str) -> bool:
    """Return whether a student's file holds functions, and all of them are still stubs."""
    functions = FUNCTION.split(text)[1:]
    return bool(functions) and all(map(STUB.match, functions))


def _text(name: str, files: dict[str, Callable[[], bytes]]) -> str:
    """Return a listed file's text.

    Raise Refused with the reason if the file is missing, cannot be read, is too large or is not
    UTF-8 text.
    """
    if name not in files:
        alike = [n for n in files if n.lower() == name]
        raise Refused(
            f"The submission has no {name}"
            + (f" (rename {alike[0]} to this name)" if alike else "")
        )
    try:
        data = files[name]()
    except OSError as error:
        raise Refused(f"{name} cannot be read ({type(error).__name__})") from None
    if len(data) > MAX_FILE_BYTES:
        raise Refused(f"{name} is larger than {MAX_FILE_BYTES / (1 << 20):g} MiB")
    try:
        text = data.decode("utf-8-sig")  # Notepad begins a file with a byte order mark
    except UnicodeDecodeError as error:
        before, wrong = error.object[: error.start], error.object[error.start]
        line = before.count(b"\n") + 1
        raise Refused(
            f"{name} is not UTF-8 text: byte 0x{wrong:02x} in line {line}. Save the"
            " file in UTF-8"
        ) from None
    if "\0" in text:
        raise Refused(f"{name} holds a null byte: it is not Python source")
    return text


def _first_names(names: list[str]) -> str:
    return ", ".join(map(printable_name, names[:8])) + (" …" if len(names) > 8 else "")
