"""Wraps functions of the operating system, with a fallback for systems that lack a function."""

import contextlib
import ctypes
import os
import signal
import stat
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Collection

PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
MADV_COLLAPSE = 25
HUGE_PAGE = 1 << 21
STOP_RUNNING_SECONDS = 0.005  # the longest wait until a process stops running

LINUX = sys.platform.startswith("linux")


def _prctl(option: int, value: int) -> None:
    if LINUX:
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def hide_from_tracers() -> None:
    """Allow only root to trace this process, and to read its memory and environment.

    Only Linux can do this. On other systems this function does nothing.
    """
    _prctl(PR_SET_DUMPABLE, 0)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Have the system send this process a signal when the parent of this process dies.

    Only Linux can do this. On other systems the end of the judge's socket has the same effect.
    """
    _prctl(PR_SET_PDEATHSIG, number)


def give_back_freed_memory() -> None:
    """Give back to the system the memory that this process has freed. Without glibc, do nothing."""
    if LINUX and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies.

    Only Linux can do this. On other systems this function does nothing.
    """
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def family(ancestor: int, spare: Collection[int] = ()) -> dict[int, int]:
    """Return the living descendants of a process, each with its number of threads.

    Processes in ``spare`` and their descendants are left out. On systems other than Linux the
    result is empty.
    """
    found: dict[int, int] = {}
    children = _way_to_children(ancestor)
    generation = [ancestor] if LINUX else []
    while generation:
        unknown = [pid for parent in generation for pid in children(parent) if pid not in found]
        generation = [pid for pid in unknown if pid not in spare]
        # If a zombie has several threads, only its first thread has ended: the process lives on.
        known = {
            pid: fields
            for pid in generation
            if (fields := _stat(pid)) and (fields[0] != b"Z" or _threads(pid) > 1)
        }
        found |= {pid: int(fields[17]) for pid, fields in known.items()}
    return found


def children(pid: int) -> list[int]:
    """Return the children of a process, including dead ones that nobody has collected.

    On systems other than Linux the result is empty.
    """
    return _way_to_children(pid)(pid) if LINUX else []


def _way_to_children(pid: int) -> Callable[[int], list[int]]:
    return (
        _children if os.path.exists(f"/proc/{pid}/task/{pid}/children") else _children_by_search()
    )


def _children(pid: int) -> list[int]:
    """Return the children of a process that the system lists in /proc.

    If children start or end meanwhile, the list may lack some children.
    """
    found: list[int] = []
    with contextlib.suppress(OSError):  # the process has ended
        for thread in os.listdir(f"/proc/{pid}/task"):
            with (
                contextlib.suppress(OSError),  # the thread has ended meanwhile
                open(f"/proc/{pid}/task/{thread}/children") as file,
            ):
                found += map(int, file.read().split())
    return found


def _children_by_search() -> Callable[[int], list[int]]:
    """Search all processes one time. Return a function that returns the children of a process.

    This is for kernels that keep no list of children.
    """
    children = defaultdict(list)
    for entry in os.listdir("/proc") if LINUX else ():
        if entry.isdigit() and (fields := _stat(int(entry))):
            children[int(fields[1])].append(int(entry))
    return lambda pid: children[pid]


def _stat(pid: int) -> list[bytes]:
    """Return the fields of a process's stat file, from the state on; [] if the process is gone."""
    try:
        return read_bytes(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    except OSError:
        return []


def read_bytes(path: str) -> bytes:
    """Return the bytes of a small file, such as one in /proc, with few system calls."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        found = b""
        while more := os.read(descriptor, 1 << 16):
            found += more
        return found
    finally:
        os.close(descriptor)


def processor_time(pid: int) -> int:
    """Return the nanoseconds of processor time of a process and all its descendants.

    The result is 0 if the system does not report this time, for example if it is not Linux. The
    time of an ended descendant is included only if its parent has waited for it. This time is
    counted in ticks of 10 ms. The process itself must be about to wait, because the system knows
    the time of a running process only up to the last tick. The process gets
    ``STOP_RUNNING_SECONDS`` to stop running.
    """
    if not LINUX:
        return 0
    deadline = time.monotonic() + STOP_RUNNING_SECONDS
    while (fields := _stat(pid)) and fields[0] == b"R" and time.monotonic() < deadline:
        time.sleep(1e-4)
    if not fields:
        return 0
    # cutime and cstime in proc(5)
    ended = sum(map(int, fields[13:15])) * 10**9 // os.sysconf("SC_CLK_TCK")
    return ended + sum(map(_own_time, (pid, *family(pid))))


def _own_time(pid: int) -> int:
    clock = ~pid << 3 | 2  # as clock_getcpuclockid(3) gives it
    try:
        return time.clock_gettime_ns(clock)
    except OSError:  # the process has ended
        return 0


def use_huge_pages() -> None:
    """Move this process's own memory into huge pages, so that a fork takes less time.

    A fork then copies hundreds of page table entries, and not tens of thousands. The pages stay
    small if Linux is older than 6.1, or has no free huge page.
    """
    if not LINUX:
        return
    advise = ctypes.CDLL(None).madvise
    with open("/proc/self/maps") as maps:
        areas = [line.split()[:5] for line in maps]
    for addresses, rights, _, _, inode in areas:
        if rights == "rw-p" and inode == "0":  # writable, and of no file
            start, end = (int(address, 16) for address in addresses.split("-"))
            for page in range(-(-start // HUGE_PAGE) * HUGE_PAGE, end - HUGE_PAGE + 1, HUGE_PAGE):
                advise(ctypes.c_void_p(page), ctypes.c_size_t(HUGE_PAGE), MADV_COLLAPSE)


def close_from(first: int) -> None:
    """Close all descriptors from ``first`` on.

    If the system does not list the open descriptors, close only those below 65,536.
    """
    try:
        found = [int(name) for name in os.listdir("/dev/fd")]
    except OSError:
        return os.closerange(first, 1 << 16)
    for descriptor in found:
        if descriptor >= first:
            # ``closerange`` raises nothing if the descriptor is closed already.
            os.closerange(descriptor, descriptor + 1)


def close_ends(without: Collection[int]) -> None:
    """Close all sockets and pipes, except descriptors 0 to 2 and the descriptors in ``without``."""
    kept = {0, 1, 2, *without}
    for name in os.listdir("/dev/fd"):
        descriptor = int(name)
        try:
            mode = os.fstat(descriptor).st_mode
        except OSError:  # the descriptor of the listing itself, closed by now
            continue
        if descriptor not in kept and (stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)):
            os.close(descriptor)


def _threads(pid: int) -> int:
    """Return how many threads a process has, or 0 if the system does not say.

    The first thread is included, even if it has ended.
    """
    try:
        return len(os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return 0


def threads() -> int:
    """Return how many threads this process has, or 1 if the system does not say."""
    return len(os.listdir("/proc/self/task")) if LINUX else 1
