"""This module releases the resources that a rank process has inherited from its supervisor.

This happens before student code runs, so that student code cannot use these resources.
"""

import contextlib
import fcntl
import io
import os
import resource
import signal
import sys

from grader.wire import os_support


def give_up_inherited(wire_fd: int, output_fd: int, stacks_fd: int) -> tuple[int, int]:
    """Release the inherited resources, and return the new numbers of wire_fd and stacks_fd."""
    os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)
    for name in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(name, signal.SIG_DFL)
    # Renumber the kept descriptors as 0, 1, …, and close all others, because a rank must not have
    # the socket of another rank.
    null = os.open(os.devnull, os.O_RDONLY)
    wanted = [null, output_fd, output_fd, wire_fd, stacks_fd, *_own_files()]
    # First copy the kept descriptors to numbers above all new numbers, so that ``dup2`` overwrites
    # none of them. Use the lowest such numbers, because the user's limit on open files may be low.
    kept = [fcntl.fcntl(fd, fcntl.F_DUPFD, len(wanted)) for fd in wanted]
    for target, descriptor in enumerate(kept):
        os.dup2(descriptor, target, inheritable=target < 3)
    os_support.close_from(len(kept))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.stdin = open(0, closefd=False)
    sys.stdout = io.TextIOWrapper(
        io.FileIO(1, "w", closefd=False), errors="replace", write_through=True
    )
    sys.stderr = io.TextIOWrapper(
        io.FileIO(2, "w", closefd=False), errors="replace", write_through=True
    )
    return 3, 4


def _own_files() -> list[int]:
    """Return a list with an open descriptor of this process's folder in /proc.

    The list is empty if there is no such folder, as on systems other than Linux.

    The descriptor keeps the folder's entry in Linux's cache. When memory is short, Linux removes
    the entries that no process has open. Without its entry, the folder would lose its Landlock
    rule, and this process could not count its threads.
    """
    with contextlib.suppress(OSError):
        return [os.open("/proc/self", os.O_PATH)] if os_support.LINUX else []
    return []
