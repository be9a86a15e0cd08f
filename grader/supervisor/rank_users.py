"""Gives each rank its own user, kills this user's processes, and reads this user's files.

To kill and to read, a process acts as this user. Only root can act as another user.
"""

import contextlib
import ctypes
import os
import signal
import struct
from collections.abc import Iterator

from grader.rank.confinement import CAPABILITIES, Unconfined, become, drop_capabilities, libc
from grader.wire import os_support, tiers
from grader.wire.os_support import LINUX

# Nobody else uses these user ids. The id of a rank is computed from its supervisor's process id.
UIDS = range(1 << 20, 1 << 30)
PR_GET_PDEATHSIG = 2


def user_of(supervisor: int, rank: int) -> int:
    """Return the uid of a rank. No other living rank has this uid.

    ``supervisor`` is the process id of the supervisor of the rank's world.
    """
    return UIDS.start + supervisor * tiers.MAX_RANKS + rank


def users_of_world(size: int, supervisor: int, tier: str) -> set[int]:
    """Return the uids of a world's ranks; none if the tier gives ranks no uids of their own.

    ``supervisor`` is the process id of the world's supervisor.
    """
    if not tiers.TIERS[tier].uid:
        return set()
    return {user_of(supervisor, rank) for rank in range(size)}


def kill_as(user: int) -> None:
    """Kill all other processes of a rank's user.

    Call this in a helper process, because the calling process permanently becomes that user. In
    three cases this raises Unconfined, and kills nothing: ``user`` is no rank's user, the helper
    cannot become this user, or the helper could still signal processes of other users.
    """
    if user not in UIDS:
        raise Unconfined("not a rank's user")
    supervisor = os.getppid()
    become(user, keep_reading=False)
    drop_capabilities(keep_reading=False)
    for other in (1, supervisor):
        try:
            os.kill(other, 0)
        except PermissionError:
            continue
        raise Unconfined("this process can still signal processes of other users")
    if os.getresuid() == (user, user, user):
        os.kill(-1, signal.SIGKILL)


@contextlib.contextmanager
def reading_as(user: int) -> Iterator[None]:
    """Let this process access files as a rank's user, inside a ``with`` block.

    The process keeps the capabilities that it has. Nothing changes if the system is not Linux, if
    ``user`` is not the user of a rank, or if this process does not run as root.

    The system shows the open files of a process to the user of that process. To see these files as
    root, this process would need CAP_SYS_PTRACE, a capability that most containers do not grant.
    """
    if not LINUX or user not in UIDS or os.geteuid() != 0:
        yield
        return
    system, parent, wanted = libc(), os.getppid(), ctypes.c_int(0)
    system.prctl(PR_GET_PDEATHSIG, ctypes.byref(wanted))
    try:
        system.setfsgid(ctypes.c_uint(user))
        system.setfsuid(ctypes.c_uint(user))
        sets = ctypes.create_string_buffer(24)
        system.capget(CAPABILITIES, sets)
        _, low, *rest, _, high, last = struct.unpack("6I", sets.raw)
        # Make all permitted capabilities effective again. A process may not look into another
        # process that has a capability which the first process lacks.
        system.capset(CAPABILITIES, struct.pack("6I", low, low, *rest, high, high, last))
        yield
    finally:
        system.setfsuid(0)
        system.setfsgid(0)
        # After a change of user, the system sends no signal when the parent dies.
        if wanted.value:
            os_support.die_with_parent(wanted.value)
            if os.getppid() != parent:  # the parent has died meanwhile
                os.kill(os.getpid(), wanted.value)
