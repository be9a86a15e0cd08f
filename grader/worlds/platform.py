"""What the operating system lets us do, each with the next best where it is missing."""

import ctypes
import math
import os
import signal
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
MADV_COLLAPSE = 25
HUGE_PAGE = 1 << 21

LINUX = sys.platform.startswith("linux")


def _prctl(option: int, value: int) -> None:
    if LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def die_with_parent() -> None:
    """Be killed when the parent dies (Linux; elsewhere the end of the judge's socket has the same effect)."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies (Linux)."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def children(pid: int) -> list[int]:
    """The living children of a process (Linux; elsewhere none are found)."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat") if LINUX else ():
        try:
            state, parent = entry.read_text().rpartition(")")[2].split()[:2]
        except OSError:
            continue  # it has ended meanwhile
        if int(parent) == pid and state != "Z":
            found.append(int(entry.parent.name))
    return found


def use_huge_pages() -> None:
    """Lay this process's own memory into huge pages, so that a fork copies and drops hundreds of entries, not ten thousands.

    Asked for as a favour: where Linux is older than 6.1, or has no room, the pages stay small.
    """
    if not LINUX:
        return
    advise = ctypes.CDLL(None).madvise
    with open("/proc/self/maps") as maps:
        areas = [line.split()[:5] for line in maps]
    for addresses, rights, _, _, inode in areas:
        if rights == "rw-p" and inode == "0":  # of no file
            start, end = (int(address, 16) for address in addresses.split("-"))
            for page in range(-(-start // HUGE_PAGE) * HUGE_PAGE, end - HUGE_PAGE + 1, HUGE_PAGE):
                advise(ctypes.c_void_p(page), ctypes.c_size_t(HUGE_PAGE), MADV_COLLAPSE)


def threads() -> int:
    """How many threads this process has; 1 where nobody can tell."""
    return len(os.listdir("/proc/self/task")) if LINUX else 1


def cores() -> int:
    """Cores that this process may really use: its affinity, cut to the container's quota."""
    count = len(os.sched_getaffinity(0)) if LINUX else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        count = min(count, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):
        pass  # no such file, or "max"
    return max(1, count)
