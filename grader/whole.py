"""Files that are there whole, or as they were before: nobody ever meets a half of one."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def written_whole(target: Path) -> Iterator[BinaryIO]:
    """A file to write to, which takes the target's place at the end; where something goes wrong, the old one stays."""
    descriptor, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
