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
from dataclasses import asdict

from grader.worlds import confinement, place, platform, sweep
from grader.worlds.excess import Bounds
from grader.worlds.place import Place

LOOK_EVERY = 0.1  # seconds

Start = Callable[[list[int], Place], int]


def keep(judge: socket.socket, descriptors: list[list[int]], start: Start, world: dict, tier: str) -> None:
    """Run one world: ``descriptors`` holds [wire, output, stacks] for each rank; ``start`` makes a rank of them.

    ``world`` is what the judge asked for: ``size``, ``folder``, ``stage``, ``device``, ``memory``.
    """
    platform.die_with_parent()
    confinement.hide_from_tracers()
    platform.adopt_orphans()
    wakeup_read, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
    bounds, looked = Bounds(world), time.monotonic()
    places = place.prepare(world, tier)
    ranks = {start(own, places[rank]): rank for rank, own in enumerate(descriptors)}
    everyone = set(ranks)
    for descriptor in sum(descriptors, []):
        os.close(descriptor)  # a rank's death must be the end of its pipes
    try:
        _tell(judge, {"pids": list(ranks)})
        while True:
            readable, _, _ = select.select([judge, wakeup_read], [], [], LOOK_EVERY)
            if time.monotonic() - looked > LOOK_EVERY:
                looked = time.monotonic()
                if excess := bounds.excess(ranks):
                    _tell(judge, {"limit": excess})
            if wakeup_read in readable:
                os.read(wakeup_read, 4096)
                for pid, status in _reap():
                    everyone.add(pid)
                    if pid in ranks:
                        _tell(judge, {"rank": ranks.pop(pid), "status": os.waitstatus_to_exitcode(status)})
            if judge in readable:
                judge.recv(64)  # whatever it says: the world is over
                break
    except OSError:
        pass  # the judge is gone
    everyone |= _end_all(list(ranks))
    owners = {home.user for home in places} if confinement.TIERS[tier].uid else set()
    sweep.sweep_memory(owners, everyone)
    if owners and not confinement.TIERS[tier].landlock:
        sweep.sweep_files(owners)
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


def _end_all(ranks: list[int]) -> set[int]:
    """Kill the ranks and whatever they have started, until there is nothing left to wait for; returns whom it met."""
    met: set[int] = set()
    for pid in ranks:
        _signal(pid, signal.SIGKILL)
    for pid in ranks:
        os.waitpid(pid, 0)
    while True:
        try:
            ended, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return met
        if not ended:
            stopped: set[int] = set()  # first, so that what forks without end does not go on while others are killed
            while found := platform.family(os.getpid()).keys() - stopped:
                for pid in found:
                    _signal(pid, signal.SIGSTOP)
                stopped |= found
            for pid in stopped:
                _signal(pid, signal.SIGKILL)
            met |= stopped
            time.sleep(0.001)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass


def fork_rank(descriptors: list[int], home: Place) -> int:
    """A rank forked from this process, which has imported torch and is single-threaded."""
    pid = os.fork()
    if pid:
        return pid
    try:
        from grader.worlds import rank

        platform.die_with_parent()
        rank.live(*descriptors, home)
    finally:
        os._exit(70)


def spawn_rank(descriptors: list[int], home: Place) -> int:
    """A rank in a fresh interpreter: slow, and right on every platform."""
    program = f"import sys; sys.path.insert(0, {sys.path[0]!r}); from grader.worlds import place, rank; "
    program += f"rank.live(*{descriptors!r}, place.Place(**{asdict(home)!r}))"
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    return subprocess.Popen([sys.executable, "-I", "-c", program], close_fds=False).pid
