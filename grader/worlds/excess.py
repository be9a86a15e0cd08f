"""What the ranks of a world have too much of, as a whole. What one process may have, the system holds: see ``confinement``."""

import os
from collections.abc import Iterator
from pathlib import Path

from grader.worlds import confinement, platform


class Bounds:
    """Of one world, whose keeper this process is. Made before the first rank is."""

    def __init__(self, world: dict) -> None:
        self.folder, self.size = world["folder"], world["size"]
        self.bytes = world["memory"] if world["device"] == "cpu" else None  # a GPU's driver takes what it takes
        self.inherited = memory(os.getpid())

    def excess(self, ranks: dict[int, int]) -> str:
        """In words; empty where the ranks (their processes are the keys) and what they started keep within bounds."""
        family = platform.family(os.getpid())
        if len(family) > confinement.PROCESSES * self.size:
            return f"started more than {confinement.PROCESSES} processes a rank"
        if sum(family.values()) > confinement.TASKS * self.size:
            return f"started more than {confinement.TASKS} processes and threads a rank"
        if self.bytes and sum(self._taken(pid, pid in ranks) for pid in family) > self.bytes:
            return f"took more than {self.bytes >> 20} MiB of memory together"
        written = sum(entry.stat(follow_symlinks=False).st_size for entry in _entries(self.folder))
        if written > confinement.FOLDER_BYTES:
            return f"wrote more than {confinement.FOLDER_BYTES >> 20} MiB to files"
        return ""

    def _taken(self, pid: int, is_rank: bool) -> int:
        """Bytes beyond those that a process shares with this one, since it was forked from it."""
        own = memory(pid)
        if own < self.inherited and not is_rank:
            return own  # another program by now, which shares nothing
        return max(0, own - self.inherited)


def memory(pid: int) -> int:
    """Bytes of a process that come from no file; 0 where nobody can tell."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    lines = (line.split() for line in status.splitlines() if line.startswith(("RssAnon:", "RssShmem:")))
    return sum(int(kilobytes) << 10 for _, kilobytes, _ in lines)


def _entries(folder: str) -> Iterator[os.DirEntry]:
    """All files below a folder."""
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield from _entries(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    yield entry
    except OSError:
        pass  # gone, or not ours to see
