"""Pack the zip for students, or the zip for Gradescope.

    python -m grader.packaging.pack handout|autograder

``dist/handout.zip`` is the repository without its hidden folders. ``dist/autograder.zip`` holds the
program that grades uploads. If the files and the commit are the same, the zips are the same, byte
for byte.
"""

import argparse
import struct
import sys
import time
import zipfile
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from grader.atomic_write import written_whole
from grader.course_file import PACKED, Install, course, packed
from grader.packaging import stubs
from grader.packaging.course_files import for_course
from grader.packaging.leaks import leaks
from grader.packaging.packing_time import changed_at
from grader.packaging.visibility import (
    NOT_FOR_GRADING,
    NOT_FOR_STUDENTS,
    ONLY_FOR_GRADING,
    ROOT,
    files,
    for_students,
)
from grader.version import COMMIT, commit, run_git

WORKFLOW = ".github/workflows/lockstep.yml"  # GitHub runs the public checks in a student's copy
FOLDER = "lockstep"  # the folder inside the student's zip
EXECUTABLE = ("setup.sh", "run_autograder")
# The sections of course.toml that a zip holds.
FOR_STUDENTS = ("course", "points", "extra_credit")
FOR_GRADING = (*FOR_STUDENTS, "late", "limit", "gradescope")
Contents = dict[str, bytes]


class CannotPack(Exception):
    """Raised if something must be corrected before a zip may be handed out."""


def handout() -> Contents:
    """Return the files of the student's copy.

    Raise CannotPack if a stub differs from the stub that its solution generates. Also raise
    CannotPack if the copy would hold a line of an answer or of a hidden check, or a file that git
    does not track.
    """
    for source in stubs.sources():
        target = ROOT / "handout" / source.name
        if not target.exists() or target.read_text("utf-8") != stubs.stub(
            source.read_text("utf-8")
        ):
            raise CannotPack(
                f"handout/{source.name} differs from what its solution generates: run make stubs"
            )
    contents = _read(files(NOT_FOR_STUDENTS))
    for name in ("Makefile", "setup.cfg"):
        contents[name] = for_students((ROOT / name).read_text("utf-8")).encode()
    contents["README.md"] = (Path(__file__).parent / "for_students.md").read_bytes()
    contents[".gitignore"] = (ROOT / ".gitignore").read_bytes()
    workflow = ROOT / "grader" / "platforms" / "packing" / "files" / "github-workflow.yml"
    contents[WORKFLOW] = workflow.read_bytes()
    contents = for_course(contents | _origin() | _course(FOR_STUDENTS), course())
    if found := leaks(contents):
        raise CannotPack(
            "the student's copy would contain lines of answers or hidden checks:\n"
            + "\n".join(found)
        )
    return {f"{FOLDER}/{name}": data for name, data in contents.items()}


def autograder() -> Contents:
    """Return the files that Gradescope unpacks into /autograder/source."""
    contents = _read([*files(NOT_FOR_GRADING), *map(Path, ONLY_FOR_GRADING)])
    contents["setup.cfg"] = for_students((ROOT / "setup.cfg").read_text("utf-8")).encode()
    platform = Path("grader", "gradescope", "platform")
    names = [platform / path.name for path in (ROOT / platform).iterdir() if path.is_file()]
    contents |= {Path(name).name: data for name, data in _read(names).items()}
    contents["install.txt"] = _install(course().install)
    return for_course(contents | _origin() | _course(FOR_GRADING), course())


def _read(names: list[Path]) -> Contents:
    """Return the contents of these files.

    Raise CannotPack if git does not track one of the files, because this file might be private: a
    list of grades, or notes about the answers. If there is no git repository, all files are packed.
    """
    # A .git in a folder above this one belongs to another project.
    tracked = run_git(ROOT, "ls-files", "-z") if (ROOT / ".git").exists() else None
    if tracked and (
        unknown := [str(name) for name in names if str(name) not in tracked.split("\0")]
    ):
        raise CannotPack(
            f"git does not track {', '.join(unknown)}. Run git add on these files if everybody"
            " who gets the zip may read them. Otherwise move them out of handout/, tests/ and"
            " grader/"
        )
    return {str(name): (ROOT / name).read_bytes() for name in names}


def _course(sections: Iterable[str]) -> Contents:
    """Return ``course.json`` with these sections of the course."""
    return {str(PACKED.relative_to(ROOT)): packed(course(), sections).encode()}


def _install(install: Install) -> bytes:
    """Return install.txt for setup.sh, which cannot read course.json before it has found Python."""
    return "".join(f"{key}={value}\n" for key, value in asdict(install).items()).encode()


def _origin() -> Contents:
    """Return the file that says from which commit a zip was packed."""
    return {str(COMMIT.relative_to(ROOT)): f"{commit()}\n".encode()}


def write(contents: Contents, target: Path) -> None:
    """Write the zip, whole or not at all.

    Every entry has the time of the last change of the checkout. So the same files give equal zips,
    and corrected files are newer than those of an earlier zip.
    """
    # A zip's own times have no time zone, and begin in 1980. Programs that unzip take them for
    # local times. So the extra field (its number is 0x5455) also holds the seconds since 1970.
    moment = min(max(changed_at(), 315_532_800), 2**31 - 1)
    extra = struct.pack("<HHBl", 0x5455, 5, 1, moment)
    target.parent.mkdir(parents=True, exist_ok=True)
    with written_whole(target) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(contents):
            entry = zipfile.ZipInfo(name, time.gmtime(moment)[:6])
            entry.extra = extra
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o755 if Path(name).name in EXECUTABLE else 0o644) << 16
            archive.writestr(entry, contents[name])


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m grader.packaging.pack", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("what", choices=["handout", "autograder"])
    parser.add_argument("--to", type=Path, help="the zip to write (default: in dist)")
    arguments = parser.parse_args()
    target = arguments.to or ROOT / "dist" / f"{arguments.what}.zip"
    try:
        contents = {"handout": handout, "autograder": autograder}[arguments.what]()
        write(contents, target)
    except (CannotPack, OSError, ValueError) as error:
        print(f"cannot pack: {error}", file=sys.stderr)
        return 2
    print(f"{target}: {len(contents)} files, {target.stat().st_size / 1024:.0f} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
