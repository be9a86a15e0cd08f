"""Finds the files of the assignment in a submission, which is a directory or a zip.

A *listed* file is a file that a student of this course hands in: one of ``course().files``.

A submission may hold anything: links, special files, deep folders, archives that claim any size.
No path in an archive is used as a path on disk.
"""

import io
import re
import stat
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePath, PurePosixPath

from grader.course_file import course

HIDDEN = Path(__file__).resolve().parents[1] / "hidden"  # not in a student's copy
# A student who hands in other files with these endings may think that the grader reads them. So a
# warning names these files.
PYTHON_LIKE = (".py", ".pyc", ".pth", ".so", ".ini", ".cfg", ".toml")
DRIVE = re.compile("[A-Za-z]:")  # the beginning of a Windows path that names a drive
MAX_FILE_BYTES = 1 << 20
MAX_ARCHIVE_FILES = 2000
# The limits of the search for listed files: how deep, and in how many folders of a directory.
MAX_DEPTH, MAX_FOLDERS = 8, 2000
MAX_READ = MAX_FILE_BYTES + 1  # one byte more shows that a file is too large
# With other compression methods, zipfile may unpack any number of bytes in one step.
UNPACKED = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


class Refused(ValueError):
    """Raised if a submission, or one of its files, cannot be used.

    The student made a mistake. If the whole submission is refused, no part gets points. If one file
    is refused, the part of that file gets no points.
    """


@dataclass
class FoundFiles:
    """The files that are found in a submission.

    ``files`` maps the names of the listed files to functions that read them. All these files lie in
    the folder ``home``, which is "" for the top folder. ``others`` are files in the same folder
    that a student may expect the grader to read, too (see PYTHON_LIKE). ``elsewhere`` are other
    folders with listed files.
    """

    files: dict[str, Callable[[], bytes]]
    home: str = ""
    others: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)


def _nearest_first(folder: PurePath) -> tuple:
    """Return a key that sorts folders. The grader reads the first folder that has listed files.

    The folder nearest to the top comes first. Among folders at the same depth, handout/ comes
    first, because another folder may be a backup of it.
    """
    return len(folder.parts), folder.name != "handout", folder.as_posix()


def candidates(directory: Path) -> list[Path]:
    """Return the folders in which the grader reads listed files, or would read new listed files."""
    directory = _top(directory)
    found = [*places(directory), directory, directory / "handout"]
    folders = [p for p in _listing(directory) if p.is_dir() and not _is_aside(p.name)]
    if len(folders) == 1:
        found += [folders[0], folders[0] / "handout"]
    return found


def _top(directory: Path) -> Path:
    """Return the directory of a submission. In a student's copy, follow a link to a directory.

    In other copies, follow no link. A student may have made the link to read other people's files.
    """
    return directory if HIDDEN.exists() else directory.resolve()


def places(directory: Path) -> list[Path]:
    """Return the folders in a directory that have listed files. The grader reads the first folder.

    Search MAX_DEPTH levels below the directory. Begin no further level after MAX_FOLDERS folders.
    Also stop one level below the first folder that has listed files. This level is searched because
    it may contain a ``handout/`` that also has listed files. Then a warning names this
    ``handout/``.
    """
    found: list[Path] = []
    level, seen, is_last = [directory], 0, False
    for _ in range(MAX_DEPTH + 1):
        below = []
        for folder in level:
            try:
                entries = _listing(folder)
            except OSError:
                if folder == directory:
                    raise
                continue
            if any(_is_listed(path.name) for path in entries):
                found.append(folder)
            below += [p for p in entries if not p.is_symlink() and p.is_dir()]
        level = [path for path in below if not _is_aside(path.name)]
        seen += len(level)
        if is_last or seen > MAX_FOLDERS:
            break
        is_last = bool(found)
    return sorted(found, key=_nearest_first)


def _is_aside(folder: str) -> bool:
    """Return whether a folder of this name holds no work of students.

    Programs make hidden folders and ``__MACOSX``. ``grader``, which is in every student's copy, has
    modules with names of listed files.
    """
    return folder.startswith(".") or folder in ("__MACOSX", "grader")


def find_in_directory(directory: Path) -> FoundFiles:
    """Find the listed files in a directory.

    A listed file that is a link, a folder or a special file is not read: its reader raises Refused.
    """
    directory = _top(directory)
    homes = places(directory) or [directory]
    home = homes[0]
    files: dict[str, Callable[[], bytes]] = {}
    others = []
    for path in _listing(home):
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:
            continue  # for example, an editor has removed its temporary file
        if _is_listed(path.name) and stat.S_ISREG(mode):
            files[path.name] = partial(_read, path)
        elif _is_listed(path.name):
            files[path.name] = partial(_refuse, path.name)
        elif stat.S_ISREG(mode) and path.suffix in PYTHON_LIKE:
            others.append(path.name)
    names = ["" if p == directory else p.relative_to(directory).as_posix() for p in homes]
    return FoundFiles(files, names[0], others, names[1:])


def has_listed_files(directory: Path) -> bool:
    """Return whether the intake finds a file of the assignment in a directory.

    Also return True if the directory cannot be read. Then its grading reports the error.
    """
    try:
        return bool(find_in_directory(directory).files)
    except OSError:
        return True


def _is_listed(name: str) -> bool:
    return name.lower() in course().files


def _listing(directory: Path) -> list[Path]:
    if directory.is_symlink() or not directory.is_dir():
        return []
    return sorted(directory.iterdir())


def _refuse(name: str) -> bytes:
    raise Refused(f"{name} is a link, a folder or a special file, not a regular file")


def _read(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(MAX_READ)


class _Archive(io.BufferedReader):
    """A file that limits how many bytes zipfile reads at a time.

    Without this limit, zipfile would read an archive's whole directory, and make an object for each
    entry.
    """

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size > MAX_READ:
            raise Refused("the zip archive lists too many files")
        return super().read(MAX_READ if size is None or size < 0 else size)


def find_in_zip(archive_path: Path) -> FoundFiles:
    """Find the course's files in a zip, which is read in memory.

    No path in the zip is used as a path on disk. Raise Refused if the zip cannot be used.
    """
    try:
        file = _Archive(open(archive_path, "rb", buffering=0)) if archive_path.is_file() else None
        archive = zipfile.ZipFile(file) if file and zipfile.is_zipfile(file) else None
    except (Refused, OSError):
        raise
    # zipfile raises many kinds of errors for a broken archive, even in is_zipfile.
    except Exception as error:
        raise Refused(f"the zip archive cannot be read ({type(error).__name__})") from None
    if not archive:
        raise Refused(
            f"{printable_name(archive_path.name)} is neither a directory nor a zip archive"
        )
    entries = archive.infolist()
    if len(entries) > MAX_ARCHIVE_FILES:
        raise Refused(f"the zip archive holds more than {MAX_ARCHIVE_FILES} files")
    paths = {}
    for entry in entries:
        path = PurePosixPath(entry.filename.replace("\\", "/"))
        if path.is_absolute() or ".." in path.parts or DRIVE.match(str(path)):
            raise Refused(
                f"the zip archive holds a path to a place outside of the archive:"
                f" {printable_name(entry.filename)}"
            )
        if stat.S_ISLNK(entry.external_attr >> 16):
            raise Refused(f"the zip archive holds a link: {printable_name(entry.filename)}")
        is_file = path.parts and not entry.filename.endswith("/")
        is_near = len(path.parts) <= MAX_DEPTH + 1
        if is_file and is_near and not any(map(_is_aside, path.parts[:-1])):
            paths[path] = entry
    listed = [path for path in paths if _is_listed(path.name)]
    homes = sorted({path.parent for path in listed}, key=_nearest_first) or [PurePosixPath()]
    home = homes[0]
    files: dict[str, Callable[[], bytes]] = {}
    for path in listed:
        if path.parent == home:
            files[path.name] = partial(_extract, archive, paths[path])
    others = [
        p.name
        for p in paths
        if p.parent == home and not _is_listed(p.name) and p.suffix in PYTHON_LIKE
    ]
    names = ["" if place == PurePosixPath() else place.as_posix() for place in homes]
    return FoundFiles(files, names[0], others, names[1:])


def _extract(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> bytes:
    """Return the bytes of an entry, at most MAX_READ, whatever size the archive claims.

    Raise Refused if the entry cannot be unpacked.
    """
    name = printable_name(PurePosixPath(entry.filename).name)
    if entry.compress_type not in UNPACKED:
        raise Refused(f"{name} is compressed in an unusual way: make an ordinary zip")
    try:
        with archive.open(entry) as file:
            return file.read(MAX_READ)
    # zipfile and zlib raise many kinds of errors, for bad checksums, encryption, unknown methods.
    except Exception as error:
        raise Refused(f"{name} cannot be unpacked ({type(error).__name__})") from None


def printable_name(name: str) -> str:
    """Return the beginning of a file's name, without characters that cannot be printed."""
    return "".join(c if c.isprintable() else "?" for c in name)[:80]
