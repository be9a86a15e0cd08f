"""Files that are there whole, or as they were before: nobody ever meets a half of one."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def cannot_write(what: str, target: Path) -> str:
    """Why what we have cannot be written there, in a sentence; empty where it can.

    Leaves nothing behind.
    """
    folder = target.absolute().parent
    if not folder.is_dir():
        return f"there is no directory for {what}: {folder}"
    if target.is_dir():
        return f"there is a directory where {what} would be written: {target}"
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return f"{what} cannot be written in {folder}: {error.strerror}"


@contextmanager
def written_whole(target: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the target's place at the end; where something goes wrong,
    the old one stays.
    """
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
