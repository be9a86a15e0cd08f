"""Finds the shared memory that a process maps, and the files without a name that it maps.

A mapping keeps a file alive after the file has lost its name and all its descriptors are closed.
The pages of such a file are not anonymous memory, so ``process_memory.memory`` does not count them.
``process_memory.memory`` counts a page of shared memory only while the page table of the process
has this page. A process may drop such pages from its page table (MADV_DONTNEED) and use them again
later.
"""

import os
from dataclasses import dataclass

from grader.wire.os_support import read_bytes

REMOVED = b" (deleted)"  # the end of a path in a maps file, if the file has lost its name
# The beginnings of paths of shared memory. The system counts pages of shared memory as RssShmem.
SHARED_MEMORY = (b"/dev/zero" + REMOVED, b"/memfd:", b"/SYSV", b"/dev/shm/")


@dataclass(frozen=True)
class Mapped:
    """A file that is shared memory or has no name, as one mapping of a process shows it."""

    inode: int
    end: int  # the offset in the file, in bytes, at which the mapping ends
    is_shared_memory: bool
    name: str  # of the mapping, in the folder /proc/PID/map_files


def maps_of(pid: int) -> tuple[str, bytes]:
    """Return a process's folder in /proc, and its mappings as the system lists them.

    If the first thread of the process has ended, the folder of the process shows no mappings. Then
    return the folder of another thread. Raises OSError if the system does not show the mappings.
    """
    own = f"/proc/{pid}"
    if found := read_bytes(f"{own}/maps"):
        return own, found
    for thread in os.listdir(f"{own}/task"):
        if found := read_bytes(f"{own}/task/{thread}/maps"):
            return f"{own}/task/{thread}", found
    return own, b""


def without_name(maps: bytes) -> dict[int, Mapped]:
    """Return the files in these mappings that are shared memory or have no name, by inode.

    If a file has several mappings, the result has the mapping that ends last in the file.
    """
    found: dict[int, Mapped] = {}
    if REMOVED + b"\n" not in maps and SHARED_MEMORY[-1] not in maps:
        return found  # the usual case; this test takes far less time than reading all lines
    for line in maps.split(b"\n"):
        if not line.endswith(REMOVED) and SHARED_MEMORY[-1] not in line:
            continue
        span, _, offset, _, inode, path = line.split(None, 5)
        is_shared = path.startswith(SHARED_MEMORY)
        if not is_shared and not path.endswith(REMOVED):
            continue
        begin, end = (int(bound, 16) for bound in span.split(b"-"))
        mapped = Mapped(int(inode), int(offset, 16) + end - begin, is_shared, f"{begin:x}-{end:x}")
        if mapped.inode not in found or found[mapped.inode].end < mapped.end:
            found[mapped.inode] = mapped
    return found


def pages_of_files(pid: int, folder: str) -> int:
    """Return how many bytes of a process's RssFile are pages of its own files.

    A process's own files are the files in ``folder``, and files without a name. The result is 0 if
    the system does not show this number. If the process maps files of its own, this function takes
    20 times as long as ``maps_of``.
    """
    below = os.fsencode(folder) + b"/"

    def is_own(path: bytes) -> bool:
        is_removed = path.endswith(REMOVED) and not path.startswith(SHARED_MEMORY)
        return is_removed or path.startswith(below)

    try:
        if not any(is_own(b"/" + line.partition(b"/")[2]) for line in _lines(f"/proc/{pid}/maps")):
            return 0
        shown = _lines(f"/proc/{pid}/smaps")
    except OSError:
        return 0
    total, counts = 0, False
    for line in shown:
        if not line[:1].isupper():  # a mapping begins; its numbers follow
            counts = is_own(b"/" + line.partition(b"/")[2])
        elif counts and line.startswith((b"Rss:", b"Anonymous:")):
            kilobytes = int(line.split()[1])
            total += kilobytes << 10 if line.startswith(b"Rss:") else -kilobytes << 10
    return total


def _lines(path: str) -> list[bytes]:
    return read_bytes(path).split(b"\n")
