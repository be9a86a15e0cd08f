"""Unpacks the zip of a platform's export. The names and contents in the zip come from students."""

import stat
import zipfile
from contextlib import suppress
from pathlib import Path, PurePosixPath

from grader.course.gradescope_metadata import METADATA

MAX_EXPORT_FILES = 200_000
MAX_EXPORT_FILE_BYTES = 64 << 20
MAX_METADATA_BYTES = 4 << 30  # of METADATA, which holds the results of all uploads
CHUNK_BYTES = 1 << 20  # a file is unpacked in parts of this size


class CannotRead(Exception):
    """Raised if there are no submissions to read. The message is a sentence for the instructor."""


def unpack(archive_path: Path, into: Path) -> list[str]:
    """Unpack the regular files of a zip into ``into``, and return the names of all other files.

    A file whose path leads outside of ``into`` is not unpacked. Raise CannotRead if nothing can be
    read, and OSError if the zip file cannot be opened.
    """
    try:
        with zipfile.ZipFile(archive_path) as archive:
            entries = archive.infolist()
            if len(entries) > MAX_EXPORT_FILES:
                raise CannotRead(
                    f"{archive_path} holds more than {MAX_EXPORT_FILES} files and folders"
                )
            return [e.filename for e in entries if not _unpack_entry(archive, e, into)]
    except UnicodeDecodeError:
        why = "a file name in the zip is not valid UTF-8. Unpack the zip with another program"
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as error:
        why = str(error)
    raise CannotRead(f"{archive_path} is not a folder, and it cannot be read as a zip file: {why}")


def _unpack_entry(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, into: Path) -> bool:
    """Unpack an entry if it is a regular file inside ``into``.

    Return False if an error occurs, or if the path of a file is not allowed.
    """
    parts = PurePosixPath(entry.filename.replace("\\", "/")).parts
    is_regular = not entry.is_dir() and not stat.S_ISLNK(entry.external_attr >> 16)
    is_below = parts and not {"..", "/"} & set(parts) and ":" not in parts[0]
    if not is_regular or "__MACOSX" in parts[:1]:
        return True
    if not is_below:
        return False
    target = into.joinpath(*parts)
    most = MAX_METADATA_BYTES if METADATA in parts[:2] else MAX_EXPORT_FILE_BYTES
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(entry) as file, target.open("wb") as unpacked:
            # A larger file is cut here. The kept part is still too large: the grader refuses it.
            while most > 0 and (chunk := file.read(min(most, CHUNK_BYTES))):
                unpacked.write(chunk)
                most -= len(chunk)
        return True
    except Exception:  # a damaged entry may raise many errors: of zipfile, zlib, lzma, the system
        # The submission is graded without this file, and the results say that it is missing.
        with suppress(OSError, ValueError):  # such as a name that is too long for a file
            target.unlink(missing_ok=True)
        return False
