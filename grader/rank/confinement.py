"""How a process enters a tier of confinement, for good: see ``wire.tiers``.

Nothing in here is secret.
"""

import contextlib
import ctypes
import errno
import os
import platform as system
import resource
import signal
import struct
import sys
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from grader.rank import seccomp
from grader.wire import machine_limits
from grader.wire.os_support import LINUX
from grader.wire.tiers import FILE_BYTES, FILES_OPEN, RANKS, TASKS, Tier

# They belong to nobody; each rank takes one that follows from its supervisor's process number.
UIDS = range(1 << 20, 1 << 30)
PR_SET_PDEATHSIG, PR_GET_PDEATHSIG = 1, 2
PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_NO_NEW_PRIVS = 4, 8, 38
CAP_DAC_READ_SEARCH = 2
CLONE_NEWIPC = 0x08000000


SECRETS = ("grader", "solutions", ".git")  # folders of the engine that no rank may see


class Unconfined(RuntimeError):
    """A protection that this process was to get cannot be had."""


@lru_cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        raise Unconfined(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def _prctl(option: int, value: int) -> None:
    _check(
        _libc().prctl(
            option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)
        ),
        "prctl",
    )


def user_of(supervisor: int, rank: int) -> int:
    """A uid that no other living rank has."""
    return UIDS.start + supervisor * RANKS + rank


def enter(tier: Tier, user: int, readable: list[str], writable: list[str], device: str) -> None:
    """Confine this process, for good, before student code runs in it.

    Args:
        user: the uid and gid that it gets, if the tier has one.
        readable: folders beside Python's and the system's. writable: its own.
        device: ``cpu``, or ``cuda``, whose driver wants much address space and the files of the
            device.

    Raises:
        Unconfined: something of the tier does not work here.
    """
    if not LINUX:
        return
    # forked from one that hides, not even its own user could open its files in /proc
    _prctl(PR_SET_DUMPABLE, 1)
    _limit(device)
    # Shared memory of its own, which goes with it. Root may, outside of containers; elsewhere the
    # supervisor sweeps up.
    _libc().unshare(CLONE_NEWIPC)
    if tier.uid:
        _become(user, keep_reading=tier.reader)
    _drop_capabilities(keep_reading=tier.reader)
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    if tier.landlock:
        _landlock(readable, writable, device)
    _prctl(PR_SET_DUMPABLE, 1)  # which a change of user undoes
    if tier.uid:
        resource.setrlimit(resource.RLIMIT_NPROC, (TASKS, TASKS))
    if device == "cpu":  # a GPU's driver may need them
        seccomp.refuse()


def _limit(device: str) -> None:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")  # where memory runs out, a rank goes first, and not the judge
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES_OPEN, FILES_OPEN))
    # POSIX message queues would stay, and be found by name alone
    resource.setrlimit(resource.RLIMIT_MSGQUEUE, (0, 0))
    resource.setrlimit(
        resource.RLIMIT_MEMLOCK,
        (0, 0) if device == "cpu" else resource.getrlimit(resource.RLIMIT_MEMLOCK),
    )
    if device == "cpu":
        resource.setrlimit(resource.RLIMIT_DATA, (_memory(), _memory()))


def kill_as(user: int) -> None:
    """Kill all processes of a rank's user. This process becomes that user for it, and is of no use
    afterwards.

    Raises Unconfined, and kills nobody, where this process could still reach those of others.
    """
    if user not in UIDS:
        raise Unconfined("not a rank's user")
    supervisor = os.getppid()
    _become(user, keep_reading=False)
    _drop_capabilities(keep_reading=False)
    for other in (1, supervisor):
        try:
            os.kill(other, 0)
        except PermissionError:
            continue
        raise Unconfined("still more than a rank's user")
    if os.getresuid() == (user, user, user):
        os.kill(-1, signal.SIGKILL)


def _become(user: int, keep_reading: bool) -> None:
    if keep_reading:
        _prctl(PR_SET_KEEPCAPS, 1)
    try:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    except OSError as error:
        raise Unconfined(f"another user: {error.strerror}") from None


CAPABILITIES = struct.pack("Ii", 0x20080522, 0)  # version 3 of the interface, this process


def _drop_capabilities(keep_reading: bool) -> None:
    """Of root's powers keep none, or the one to read; even root then only has its own files and
    processes.
    """
    wanted = 1 << CAP_DAC_READ_SEARCH if keep_reading else 0
    # effective, permitted, inheritable; the low words first
    sets = struct.pack("6I", wanted, wanted, 0, 0, 0, 0)
    _check(_libc().capset(CAPABILITIES, sets), "capabilities")


@contextlib.contextmanager
def eyes_of(user: int) -> Iterator[None]:
    """Look at files as a rank's user does, with all of root's powers; as oneself where it is no
    rank's user.

    What a process has open is shown to its own user. Root sees it by a power that most containers
    do not give (CAP_SYS_PTRACE).
    """
    if not LINUX or user not in UIDS or os.geteuid() != 0:
        yield
        return
    libc, parent, wanted = _libc(), os.getppid(), ctypes.c_int(0)
    libc.prctl(PR_GET_PDEATHSIG, ctypes.byref(wanted))
    try:
        libc.setfsgid(ctypes.c_uint(user))
        libc.setfsuid(ctypes.c_uint(user))
        sets = ctypes.create_string_buffer(24)
        libc.capget(CAPABILITIES, sets)
        _, low, *rest, _, high, last = struct.unpack("6I", sets.raw)
        # Effective as permitted: nobody may look into a process that has a power which he lacks.
        libc.capset(CAPABILITIES, struct.pack("6I", low, low, *rest, high, high, last))
        yield
    finally:
        libc.setfsuid(0)
        libc.setfsgid(0)
        if wanted.value:  # a change of user makes the system forget which signal was asked for
            _prctl(PR_SET_PDEATHSIG, wanted.value)
            if os.getppid() != parent:  # died meanwhile
                os.kill(os.getpid(), wanted.value)


# ——— Landlock: what is not allowed is denied

CREATE, ADD_RULE, RESTRICT = 444, 445, 446  # system calls, on all architectures alike
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
# rights of files that an ABI knows, by its number
EVERYTHING = [0, 0x1FFF, 0x3FFF, 0x7FFF, 0x7FFF, 0xFFFF]
READ = EXECUTE | READ_FILE | READ_DIR
# rights that make sense for what is no folder
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | 0x4000 | 0x8000
# from ABI 6: abstract sockets and signals end at this process's own descendants
SCOPE_SOCKETS_AND_SIGNALS = 3


def landlock_abi() -> int:
    """The version of Landlock that this kernel has; 0 where there is none."""
    if not LINUX:
        return 0
    return max(0, _libc().syscall(CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(1)))


def _landlock(readable: list[str], writable: list[str], device: str) -> None:
    abi = landlock_abi()
    if not abi:
        raise Unconfined("this kernel has no Landlock")
    everything = EVERYTHING[min(abi, 5)]
    attributes = struct.pack("QQQ", everything, 0, SCOPE_SOCKETS_AND_SIGNALS if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    syscall = _libc().syscall
    rules = _check(syscall(CREATE, attributes, ctypes.c_size_t(size), ctypes.c_uint(0)), "Landlock")
    own = [(path, READ) for path in [*readable, f"/proc/{os.getpid()}"]] + [
        (path, everything) for path in writable
    ]
    if device == "cuda":
        own += [("/dev", everything), ("/proc", READ)]
    for place, rights in [*_common(), *_opened(own)]:
        rule = struct.pack("=Qi", rights & everything, place)
        _check(syscall(ADD_RULE, rules, 1, rule, ctypes.c_uint(0)), "Landlock")
    _check(syscall(RESTRICT, rules, ctypes.c_uint(0)), "Landlock")


def _opened(allowed: list[tuple[str, int]]) -> list[tuple[int, int]]:
    """Descriptors of the paths that there are, each with the rights that make sense for it."""
    found = []
    for path, rights in allowed:
        try:
            place = os.open(path, os.O_PATH)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EACCES, errno.ENOTDIR):
                continue  # not on this machine
            raise
        found.append((place, rights if os.path.isdir(path) else rights & OF_FILES))
    return found


@lru_cache
def _common() -> list[tuple[int, int]]:
    """What every rank may read, opened once: ``get_ready`` does so before ranks are forked."""
    return _opened(
        [(path, READ) for path in PYTHONS + SYSTEM]
        + [(path, READ_FILE | WRITE_FILE) for path in DEVICES]
    )


@lru_cache
def _memory() -> int:
    """The bytes of data that a rank may have, what it inherits included."""
    status = Path("/proc/self/status").read_text()
    return (
        int(status.partition("VmData:")[2].split()[0]) << 10
    ) + machine_limits.rank_memory_limit()


def get_ready() -> None:
    """Find out once what is the same for all processes that are forked from this one."""
    if LINUX:
        _memory.cache_clear()
        _memory(), _common()


# /sys is gloo's and the C library's, for cores and network interfaces; /etc is named file by file.
SYSTEM = [
    "/usr",
    "/lib",
    "/lib64",
    "/bin",
    "/opt/nvidia",
    "/sys/devices/system",
    "/sys/class/net",
    "/sys/devices/virtual/net",
]
SYSTEM += [
    "/etc/ld.so.cache",
    "/etc/hosts",
    "/etc/nsswitch.conf",
    "/etc/localtime",
    "/etc/host.conf",
    "/proc/cpuinfo",
]
SYSTEM += [
    "/proc/meminfo",
    "/proc/stat",
    "/proc/sys/kernel",
    "/proc/sys/vm",
    "/sys/fs/cgroup",
    "/sys/kernel/mm",
]
DEVICES = ["/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"]


def _pythons() -> list[str]:
    """The interpreter's library, and its packages: not the folder around a virtual environment,
    which may be ours.
    """
    paths = sysconfig.get_paths()
    found = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")} | {
        sys.executable,
        sys.prefix,
    }
    return sorted({os.path.realpath(path) for path in found} | {sys.base_prefix})


PYTHONS = _pythons()  # before this process may become somebody who cannot read them


def machine() -> str:
    """For the instructor: what kind of kernel this is."""
    return f"{system.system()} {system.release()}, Landlock ABI {landlock_abi()}"
