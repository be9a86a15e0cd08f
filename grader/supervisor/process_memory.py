"""Reads from /proc how much memory a process has.

If the first thread of a process has ended, its other threads show the memory.
"""

import os
from collections.abc import Iterable

from grader.hub.process_usage import MemoryUsage
from grader.supervisor import rank_users
from grader.wire import os_support

# Names of lines in a process's status file. ``UNSHARED``: memory that comes from no file, also in
# swap space and in huge pages. ``MAPPED``: pages of files. ``MOST``: the peak of all pages in RAM.
# ``TABLES``: page tables, including the tables for empty pages.
SHARED_BYTES = b"RssShmem:"
UNSHARED = (b"RssAnon:", SHARED_BYTES, b"VmSwap:", b"HugetlbPages:")
MAPPED, MOST, TABLES = b"RssFile:", b"VmHWM:", b"VmPTE:"


def memory(pid: int, *more: bytes) -> int:
    """Return the bytes of a process's memory that come from no file; 0 if they are not shown.

    ``more`` names lines of the process's status file that are added to this sum.
    """
    return sum(_shown(pid, (*UNSHARED, *more)).values())


def shared_bytes(family: Iterable[int]) -> int:
    """Return the bytes of shared memory that the system counts for these processes."""
    return sum(_shown(pid, (SHARED_BYTES,)).get(SHARED_BYTES, 0) for pid in family)


def resident(pid: int) -> MemoryUsage:
    """Return the memory of a process; zeros if the system does not show it."""
    shown = _shown(pid, (*UNSHARED, MAPPED, MOST))
    mapped, most = shown.pop(MAPPED, 0), shown.pop(MOST, 0)
    return MemoryUsage(sum(shown.values()), mapped, most)


def overwritten(pid: int) -> int | None:
    """Return private dirty bytes minus anonymous bytes, or None if the system does not show them.

    The difference grows when a process first writes to a page that it inherited. A forked process
    shares the pages of its parent until it writes to them. Such a page is anonymous before and
    after the write, but private and dirty only after the write. Private memory that the process
    allocates or frees itself does not change the difference. The difference is usually negative, so
    only its growth has a meaning. Reading it takes about 5 ms for a process that has imported
    torch.
    """
    names = (b"Private_Dirty:", b"Anonymous:")
    try:
        with rank_users.reading_as(os.stat(f"/proc/{pid}").st_uid):
            shown = _shown(pid, names, "smaps_rollup")
    except OSError:
        return None
    return shown[names[0]] - shown[names[1]] if len(shown) == 2 else None


def _shown(pid: int, names: tuple[bytes, ...], file: str = "status") -> dict[bytes, int]:
    """Return the sizes that a process's /proc file shows in these lines, in bytes.

    Return {} if the file cannot be read.
    """
    if own := _of_thread(pid, pid, names, file):
        return own
    try:  # if its first thread has ended, the other threads show the memory
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return {}
    found = (_of_thread(pid, int(thread), names, file) for thread in threads)
    return next((own for own in found if own), {})


def _of_thread(pid: int, thread: int, names: tuple[bytes, ...], file: str) -> dict[bytes, int]:
    try:
        # Read bytes, because a thread's name may not be valid text.
        text = os_support.read_bytes(f"/proc/{pid}/task/{thread}/{file}")
    except OSError:
        return {}
    return _sizes(text, names)


def _sizes(text: bytes, names: tuple[bytes, ...]) -> dict[bytes, int]:
    """Return the sizes in the lines "NAME: SIZE kB" with these names, in bytes."""
    lines = (line.split() for line in text.split(b"\n") if line.startswith(names))
    return {name: int(kilobytes) << 10 for name, kilobytes, _ in lines}
