"""Ends the processes of a world.

These processes are the descendants of this process, and all processes that run as the user of a
rank. First all these processes are killed, then they are reaped (with ``waitpid``). This module
never blocks to wait for one particular process: a traced process cannot be reaped before its
tracer is dead. A stopped process needs no special care, because it can be killed like any other.
"""

import os
import select
import signal
import time
from collections.abc import Collection

from grader.supervisor import rank_users
from grader.wire import os_support

# All processes of a world have to end within these seconds. Processes that ranks left behind may
# keep the machine busy, so the time is long. It must be less than
# ``world_supervisor.STUCK_SECONDS``.
ENDING_SECONDS = 10.0
LOOK_AT_DYING_EVERY = 0.02  # seconds
# After this many looks in a row that find only dead processes, stop waiting. Dead processes
# that remain so long are traced, so this process cannot reap them.
MAX_LOOKS_AT_DEAD = 20
ROUNDS = 50  # how often to stop all new processes, if processes fork without end


def wakeup() -> int:
    """Return a descriptor that becomes readable when this process gets a signal that it handles.

    The signal's number can be read from the descriptor. From now on this process handles SIGCHLD.
    """
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    if before >= 0:  # inherited from the process that this one was forked from
        os.close(before)
    return read


def signals(wake: int) -> bytes:
    """Return the signals that arrived since the last call. Each byte is a signal's number.

    ``wake`` is a descriptor from ``wakeup``.
    """
    try:
        return os.read(wake, 4096)
    except BlockingIOError:
        return b""


def reap(spare: Collection[int] = ()) -> dict[int, int]:
    """Reap the children that have ended, except those in ``spare``.

    Return a dict from the pids of these children to their wait statuses. Raises ChildProcessError
    if there was no child except those in ``spare``. If the system is not Linux, ``spare`` has to be
    empty, because the children cannot be listed.
    """
    ended: dict[int, int] = {}
    if not spare:
        candidates = [-1]
    elif not (candidates := [pid for pid in os_support.children(os.getpid()) if pid not in spare]):
        raise ChildProcessError
    for candidate in candidates:
        while True:
            try:
                pid, status = os.waitpid(candidate, os.WNOHANG)
            except ChildProcessError:
                if ended or spare:
                    break
                raise
            if not pid:
                break
            # A child that has made this process its tracer may report a stop. Such a child has not
            # ended.
            if not os.WIFSTOPPED(status):
                ended[pid] = status
    return ended


def end_descendants(
    known: Collection[int] = (),
    spare: Collection[int] = (),
    users: Collection[int] = (),
    wake: int | None = None,
    seconds: float = ENDING_SECONDS,
) -> tuple[bool, set[int]]:
    """Kill every descendant of this process.

    If the system is not Linux, kill only the processes in ``known``, because this process cannot
    find the others.

    Args:
        known: children that are killed immediately, without a search.
        spare: children that are left alone, with all their descendants.
        users: ids of the system's users that run ranks. If a descendant is found that is not in
            ``known``, all processes of these users are killed, too.
        wake: a descriptor from ``wakeup``.
        seconds: how long to try.

    Returns:
        A tuple: True if no living process is left, and the pids of the processes that were killed.
    """
    left, killed, dead_only = set(known), set(known), 0
    began = looked = time.monotonic()
    for pid in left:
        _signal(pid, signal.SIGKILL)
    woken = bool(left)
    while time.monotonic() - began < seconds:
        try:
            left -= reap(spare).keys()
            # If the first call reaps the last child, the second call raises ChildProcessError. With
            # only one call, this loop would then wait in vain for another signal.
            left -= reap(spare).keys()
        except ChildProcessError:
            return True, killed
        if not (left and woken) or time.monotonic() - looked > LOOK_AT_DYING_EVERY:
            looked = time.monotonic()
            found = _kill_family(spare)
            if users and found - set(known):
                for user in users:
                    end_user(user)
            killed |= found
            dead_only = 0 if found else dead_only + 1
            if dead_only > MAX_LOOKS_AT_DEAD:
                return True, killed
        woken = bool(
            select.select([wake] if wake is not None else [], [], [], LOOK_AT_DYING_EVERY)[0]
        )
        if wake is not None and woken:
            signals(wake)
    return False, killed


def _kill_family(spare: Collection[int]) -> set[int]:
    """Stop all descendants of this process, then kill them. Return their pids.

    All descendants are stopped before the first one is killed. So a process that forks without end
    cannot fork while the other processes are killed.
    """
    stopped: set[int] = set()
    for _ in range(ROUNDS):
        found = os_support.family(os.getpid(), spare).keys() - stopped
        if not found:
            break
        for pid in found:
            _signal(pid, signal.SIGSTOP)
        stopped |= found
    for pid in stopped:
        _signal(pid, signal.SIGKILL)
    return stopped


def end_user(user: int, seconds: float = 0.5) -> None:
    """Kill every process of a rank's user, even if it is not a descendant of this process.

    A helper process becomes this user and kills the processes. Give up after ``seconds``.
    """
    helper = os.fork()
    if helper == 0:
        try:
            os_support.die_with_parent()
            rank_users.kill_as(user)
        finally:
            os._exit(0)
    # A process of the user may stop the helper before the helper has killed that process. Then the
    # helper is killed here, and a later call of this function tries again.
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if os.waitpid(helper, os.WNOHANG)[0]:
                return
        except ChildProcessError:
            return
        time.sleep(0.001)
    _signal(helper, signal.SIGKILL)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        pass
