"""Remove what ranks leave where processes of any user may leave something: shared memory, and
folders for all.
"""

import contextlib
import ctypes
import os
from pathlib import Path

from grader.wire import removal

FOR_ALL = ("/tmp", "/var/tmp", "/dev/shm", "/run/lock")
IPC_RMID = 0


def clean_up(users: set[int], pids: set[int], files: bool) -> None:
    """All of that. ``pids`` are processes that these users had, ``files`` whether they could write
    outside of their folders.

    Nothing that is found stops it.
    """
    with contextlib.suppress(Exception):
        remove_shared_memory(users, pids)
    if users and files:
        with contextlib.suppress(Exception):
            remove_files(users)


def remove_files(users: set[int]) -> None:
    """Files and folders that belong to these users, directly in the folders for all."""
    for folder in FOR_ALL:
        try:
            with os.scandir(folder) as entries:
                theirs = [entry.path for entry in entries if _owner(entry) in users]
        except OSError:
            continue  # not on this machine
        for path in theirs:
            removal.remove(path)


def _owner(entry: os.DirEntry) -> int:
    """A user's number; -1 where the file is gone by now."""
    try:
        return entry.stat(follow_symlinks=False).st_uid
    except OSError:
        return -1


def remove_shared_memory(users: set[int], pids: set[int]) -> None:
    """System V segments, semaphores and queues that belong to these users, or segments that these
    processes made.
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
            continue  # a kernel without them
        for row in rows:
            found = dict(zip(names, map(int, row)))
            if found["uid"] in users or found.get("cpid") in pids:
                remove(found[f"{kind}id" if kind != "msg" else "msqid"])
