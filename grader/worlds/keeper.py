"""One world's keeper: forks its ranks, tells the judge how each ended, and leaves nothing alive behind.

The keeper is the parent of the ranks and the adoptive parent of whatever they start. It runs no student code. When the
judge says so, or hangs up, or dies, everything below the keeper is killed.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable

from grader.worlds import platform


def keep(judge: socket.socket, descriptors: list[list[int]], start: Callable[[list[int]], int]) -> None:
    """Run one world: ``descriptors`` holds [wire, output, stacks] for each rank; ``start`` makes a rank of them."""
    platform.die_with_parent()
    platform.adopt_orphans()
    wakeup_read, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
    ranks = {start(own): rank for rank, own in enumerate(descriptors)}
    for descriptor in sum(descriptors, []):
        os.close(descriptor)  # a rank's death must be the end of its pipes
    try:
        _tell(judge, {"pids": list(ranks)})
        while True:
            readable, _, _ = select.select([judge, wakeup_read], [], [])
            if wakeup_read in readable:
                os.read(wakeup_read, 4096)
                for pid, status in _reap():
                    if pid in ranks:
                        _tell(judge, {"rank": ranks.pop(pid), "status": os.waitstatus_to_exitcode(status)})
            if judge in readable:
                judge.recv(64)  # whatever it says: the world is over
                break
    except OSError:
        pass  # the judge is gone
    _end_all(list(ranks))
    try:
        _tell(judge, {"gone": True})
    except OSError:
        pass


def _tell(judge: socket.socket, message: dict) -> None:
    judge.sendall(json.dumps(message).encode() + b"\n")


def _reap() -> list[tuple[int, int]]:
    """All children that have ended: (pid, wait status)."""
    ended = []
    try:
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended.append(found)
    except ChildProcessError:
        pass
    return ended


def _end_all(ranks: list[int]) -> None:
    """Kill the ranks, then whatever they leave to this process, until there is nothing left to wait for."""
    for pid in ranks:
        for kill in (os.killpg, os.kill):
            try:
                kill(pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
    for pid in ranks:
        os.waitpid(pid, 0)
    while True:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not ended:
            for orphan in platform.children(os.getpid()):
                os.kill(orphan, signal.SIGKILL)
            time.sleep(0.001)


def fork_rank(descriptors: list[int]) -> int:
    """A rank forked from this process, which has imported torch and is single-threaded."""
    pid = os.fork()
    if pid:
        return pid
    try:
        from grader.worlds import rank

        platform.die_with_parent()
        rank.live(*descriptors)
    finally:
        os._exit(70)


def spawn_rank(descriptors: list[int]) -> int:
    """A rank in a fresh interpreter: slow, and right on every platform."""
    program = f"import sys; sys.path.insert(0, {sys.path[0]!r}); from grader.worlds import rank; "
    program += f"rank.live(*{descriptors!r})"
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    return subprocess.Popen([sys.executable, "-I", "-c", program], close_fds=False).pid
