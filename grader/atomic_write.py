"""Writes files in one step: a reader finds the old file or the whole new file, never a part."""

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO


def cannot_write(what: str, target: Path) -> str:
    """Return a sentence that says why ``target`` cannot be written, or "" if it can be written.

    ``what`` is the file's name in this sentence, such as "the report". To find out, the function
    makes a temporary file, and removes it.
    """
    folder = target.absolute().parent
    if not folder.is_dir():
        return f"there is no directory for {what}: {folder}"
    if target.is_dir():
        return f"there is a directory where {what} would be written: {target}"
    # ``written_whole`` replaces whatever is at ``target``. As root, it even replaces a device.
    if target.is_symlink():
        return f"{what} would replace a link: {target}. Give the path that the link leads to"
    if target.exists() and not target.is_file():
        return f"{what} would replace {target}, which is not an ordinary file"
    try:
        with tempfile.TemporaryFile(dir=folder):
            return ""
    except OSError as error:
        return f"{what} cannot be written in {folder}: {error.strerror}"


@contextmanager
def written_whole(target: Path, mode: int = 0o644) -> Iterator[BinaryIO]:
    """Open a new file for writing. It replaces ``target`` at the end of the ``with`` block.

    The new file has the permissions ``mode``. If anything goes wrong, the old file stays. If
    SIGKILL ends this process inside the block, an unfinished new file also stays. Its name begins
    with a dot.
    """
    # The name is known before the file exists, so that Ctrl-C at any moment leaves no file.
    temporary = target.parent / f".{target.name}-{secrets.token_hex(8)}"
    try:
        with open(temporary, "xb", opener=partial(os.open, mode=0o600)) as file:
            yield file
        os.chmod(temporary, mode)
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
