"""Removes what ranks left behind: shared memory, and files in folders open to all users."""

import contextlib
import ctypes
import os
from pathlib import Path

from grader.wire import removal

FOR_ALL = ("/tmp", "/var/tmp", "/dev/shm", "/run/lock")
IPC_RMID = 0
# The time that the kernel notes for a new segment may be this many seconds before ``time.time()``.
# The kernel takes whole seconds of a clock that advances only at each tick.
CLOCK_SECONDS = 2


def clean_up(users: set[int], pids: set[int], began: float, files: bool) -> None:
    """Remove the shared memory and the files that the ranks of a world left behind.

    ``users`` are the uids of the ranks, or empty if the ranks had no users of their own. ``pids``
    are the processes that the world had. ``began`` is the time at which the world began, as
    ``time.time()`` counts. ``files`` says whether the ranks could write outside of their folders.
    If they could not, or if ``users`` is empty, no files are removed. The files are removed even if
    the shared memory cannot be removed.
    """
    with contextlib.suppress(Exception):
        remove_shared_memory(users, pids, began)
    if users and files:
        with contextlib.suppress(Exception):
            remove_files(users)


def remove_files(users: set[int]) -> None:
    """Remove the files and folders of these users in ``FOR_ALL``, the folders open to all users.

    Only entries directly in these folders are examined.
    """
    for folder in FOR_ALL:
        try:
            with os.scandir(folder) as entries:
                theirs = [entry.path for entry in entries if _owner(entry) in users]
        except OSError:
            continue  # not on this machine
        for path in theirs:
            removal.remove(path)


def _owner(entry: os.DirEntry) -> int:
    """Return the uid of a file's owner; -1 if the file does not exist any more."""
    try:
        return entry.stat(follow_symlinks=False).st_uid
    except OSError:
        return -1


def remove_shared_memory(users: set[int], pids: set[int], began: float) -> None:
    """Remove the System V shared memory, semaphores and message queues that ranks left behind.

    Remove all of these objects that belong to ``users``. Also remove the segments that processes in
    ``pids`` have made since ``began``. Older segments may belong to another program, because pids
    are used again. A process of that program may have had the pid of a rank before the rank was
    started.
    """
    libc = ctypes.CDLL(None)
    removals = {
        "shm": lambda number: libc.shmctl(number, IPC_RMID, None),
        "sem": lambda number: libc.semctl(number, 0, IPC_RMID),
        "msg": lambda number: libc.msgctl(number, IPC_RMID, None),
    }
    for kind, remove in removals.items():
        try:
            names, *rows = [
                line.split() for line in Path(f"/proc/sysvipc/{kind}").read_text().splitlines()
            ]
        except (OSError, ValueError):
            continue  # this kernel has no such objects
        for row in rows:
            found = dict(zip(names, map(int, row)))
            is_new = found["ctime"] >= began - CLOCK_SECONDS
            if found["uid"] in users or found.get("cpid") in pids and is_new:
                remove(found[f"{kind}id" if kind != "msg" else "msqid"])
