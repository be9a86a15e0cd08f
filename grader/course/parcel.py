"""Packs a submission into bytes for the worker that grades it, and unpacks it in the worker.

A worker can run on another machine that cannot read the course's folder. The worker gets the files
as the student handed them in. So the worker's grader refuses the same files as ``make grade``, with
the same messages.
"""

import hashlib
import stat
from dataclasses import dataclass
from pathlib import Path

from grader.course.submissions import Found
from grader.intake.found_files import MAX_READ, PYTHON_LIKE, places

MAX_SUBMISSION_BYTES = 32 << 20  # of one submission
MAX_SUBMISSION_FILES = 2000
# At least this many levels of folders are read. The intake usually finds the files in the folder
# itself, or up to two levels below it.
MIN_LEVELS = 3


class TooLarge(Exception):
    """Raised if a submission is too large to be graded. The message is a sentence."""


@dataclass(frozen=True)
class PackedSubmission:
    """The names and contents of a submission's files: either one zip, or all single files.

    The content is None if the file is a link, or is not regular for another reason. Such a file is
    not read. A name that ends with a slash belongs to a folder.
    """

    files: tuple[tuple[str, bytes | None], ...]
    is_zip: bool = False

    @property
    def fingerprint(self) -> str:
        """Return a digest of the files, in hex."""
        digest = hashlib.sha256()
        for name, content in self.files:
            digest.update(repr((name, content is None, len(content or b""))).encode())
            digest.update(content or b"")
        return digest.hexdigest()

    def unpack(self, folder: Path) -> Path:
        """Write the files into an empty folder, and return the path that the grader gets."""
        if self.is_zip:
            [(name, content)] = self.files
            (folder / name).write_bytes(content or b"")
            return folder / name
        submission = folder / "submission"
        submission.mkdir()
        for name, content in self.files:
            target = submission / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if name.endswith("/"):
                target.mkdir(exist_ok=True)
            elif content is None:
                target.symlink_to("a-link-of-the-submission")
            else:
                target.write_bytes(content)
        return submission


def pack(found: Found) -> PackedSubmission:
    """Return a packed submission.

    Raise TooLarge if the submission is a zip or a folder that is too large. Raise OSError if its
    files cannot be read.
    """
    if found.names:
        paths = zip(found.names, found.paths)
        return PackedSubmission(tuple((Path(name).name, _content(path)) for name, path in paths))
    (path,) = found.paths
    if path.is_dir():
        return PackedSubmission(tuple(_of_folder(path)))
    if path.stat().st_size > MAX_SUBMISSION_BYTES:
        raise TooLarge(f"the zip is larger than {MAX_SUBMISSION_BYTES >> 20} MiB")
    return PackedSubmission((("submission.zip", path.read_bytes()),), is_zip=True)


def _of_folder(folder: Path) -> list[tuple[str, bytes | None]]:
    """Return what the intake looks at: the folders, and the files with endings in PYTHON_LIKE.

    If the assignment's files lie deep in the folder, read all levels down to these files.

    Raise TooLarge if the files are too large or too many.
    """
    files: list[tuple[str, bytes | None]] = []
    total = 0
    depths = [len(place.relative_to(folder).parts) for place in places(folder)]
    levels = max([MIN_LEVELS, *(depth + 1 for depth in depths)])
    to_read = [(folder, 1)]
    while to_read:
        inner, depth = to_read.pop()
        for path in sorted(inner.iterdir()):
            name = path.relative_to(folder).as_posix()
            if path.is_dir() and not path.is_symlink():
                files.append((f"{name}/", b""))
                to_read += [(path, depth + 1)] if depth < levels else []
            elif path.suffix.lower() in PYTHON_LIKE:
                content = _content(path)
                total += len(content or b"")
                files.append((name, content))
            if total > MAX_SUBMISSION_BYTES or len(files) > MAX_SUBMISSION_FILES:
                raise TooLarge(
                    f"it holds more than {MAX_SUBMISSION_BYTES >> 20} MiB"
                    f" or {MAX_SUBMISSION_FILES} files and folders"
                )
    return sorted(files, key=lambda file: file[0])


def _content(path: Path) -> bytes | None:
    if not stat.S_ISREG(path.lstat().st_mode):
        return None
    with open(path, "rb") as file:
        return file.read(MAX_READ)
