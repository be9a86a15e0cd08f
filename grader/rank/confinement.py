"""This module permanently confines a process to a tier of ``wire.tiers``.

Nothing in here is secret.
"""

import contextlib
import ctypes
import errno
import os
import platform as system
import resource
import struct
import sys
import sysconfig
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

from grader.rank import seccomp
from grader.wire import machine_limits
from grader.wire.os_support import LINUX
from grader.wire.tiers import FILE_BYTES, FILES_OPEN, SIGNALS_QUEUED, TASKS, Tier

PR_SET_DUMPABLE, PR_SET_KEEPCAPS, PR_SET_NO_NEW_PRIVS = 4, 8, 38
CAP_DAC_READ_SEARCH = 2
CLONE_NEWIPC = 0x08000000


class Unconfined(RuntimeError):
    """Raised if a protection that this process should get does not work here."""


@lru_cache
def libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> int:
    if result < 0:
        raise Unconfined(f"{what}: {os.strerror(ctypes.get_errno())}")
    return result


def _prctl(option: int, value: int) -> None:
    _check(
        libc().prctl(
            option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)
        ),
        "prctl",
    )


def enter(tier: Tier, user: int, readable: list[str], writable: list[str], device: str) -> None:
    """Permanently confine this process, before student code runs in it.

    Only Linux can do this. On other systems this function does nothing.

    Args:
        tier: the protections that the process gets, besides its limits.
        user: the uid and gid that the process gets, if its tier gives each rank a user of its own.
        readable: folders that the process may read, besides Python's and the system's.
        writable: the process's own folders and files, which it may read and write to.
        device: ``cpu`` or ``cuda``. If it is ``cuda``, the process may also use the GPU's files,
            and has no RLIMIT_DATA, because the driver needs a lot of address space.

    Raises:
        Unconfined: a protection of the tier does not work here.
    """
    if not LINUX:
        return
    # Make this process dumpable, because it was forked from a process that is not dumpable.
    # Otherwise not even the user of this process could open its files in /proc.
    _prctl(PR_SET_DUMPABLE, 1)
    _limit(device)
    # Give this process shared memory of its own, which disappears when this process ends. This call
    # needs CAP_SYS_ADMIN, which most containers do not grant. Without this capability, the
    # supervisor removes shared memory.
    libc().unshare(CLONE_NEWIPC)
    if tier.uid:
        become(user, keep_reading=tier.reader, groups=_gpu_groups() if device == "cuda" else [])
    drop_capabilities(keep_reading=tier.reader)
    _prctl(PR_SET_NO_NEW_PRIVS, 1)
    if tier.landlock:
        _landlock(readable, writable, device)
    _prctl(PR_SET_DUMPABLE, 1)  # again, because a change of user undoes it
    if tier.uid:
        _bound(resource.RLIMIT_NPROC, TASKS[device])
    if device == "cpu":  # a GPU's driver may need the system calls that are refused here
        seccomp.refuse_uncharged_memory()


def _limit(device: str) -> None:
    # If memory runs out, the system ends a rank first, and not the judge. Some sandboxes do not
    # allow writes to /proc. Ranks can be confined without this setting.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    _bound(resource.RLIMIT_FSIZE, FILE_BYTES)
    _bound(resource.RLIMIT_NOFILE, FILES_OPEN[device])
    # POSIX message queues would outlive the rank, and other processes could find them by name.
    resource.setrlimit(resource.RLIMIT_MSGQUEUE, (0, 0))
    # A queued signal carries bytes, in memory that the kernel does not count for any process.
    _bound(resource.RLIMIT_SIGPENDING, SIGNALS_QUEUED)
    resource.setrlimit(
        resource.RLIMIT_MEMLOCK,
        (0, 0) if device == "cpu" else resource.getrlimit(resource.RLIMIT_MEMLOCK),
    )
    if device == "cpu":
        _bound(resource.RLIMIT_DATA, _memory())


def _bound(limit: int, most: int) -> None:
    """Set both limits to ``most``, or to the present hard limit if that is lower already."""
    hard = resource.getrlimit(limit)[1]
    bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(limit, (bound, bound))


def become(user: int, keep_reading: bool, groups: Sequence[int] = ()) -> None:
    """Permanently become a rank's user.

    If ``keep_reading`` is True, keep root's capabilities until ``drop_capabilities`` drops them.
    Put the process into ``groups``, and into the group that has the id of the user.
    """
    if keep_reading:
        _prctl(PR_SET_KEEPCAPS, 1)
    try:
        os.setgroups(groups)
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    except OSError as error:
        raise Unconfined(f"cannot become another user: {error.strerror}") from None


CAPABILITIES = struct.pack("Ii", 0x20080522, 0)  # version 3 of the interface, this process


def drop_capabilities(keep_reading: bool) -> None:
    """Drop root's capabilities. If ``keep_reading`` is True, keep the capability to read all files.

    Without capabilities, the permissions of files and processes apply to root as to other users.
    """
    wanted = 1 << CAP_DAC_READ_SEARCH if keep_reading else 0
    # effective, permitted, inheritable; the low words first
    sets = struct.pack("6I", wanted, wanted, 0, 0, 0, 0)
    _check(libc().capset(CAPABILITIES, sets), "capabilities")


# ——— Landlock: what is not allowed is denied

CREATE, ADD_RULE, RESTRICT = 444, 445, 446  # system calls, the same on all architectures
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
# For each number of an ABI: all file rights that this ABI knows.
EVERYTHING = [0, 0x1FFF, 0x3FFF, 0x7FFF, 0x7FFF, 0xFFFF]
IOCTL_DEV = 0x8000  # from ABI 5 on; older ABIs do not restrict it
READ = EXECUTE | READ_FILE | READ_DIR
DEVICE = READ_FILE | WRITE_FILE | READ_DIR | IOCTL_DEV
# the rights that make sense for a file that is not a folder
OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | 0x4000 | IOCTL_DEV
# From ABI 6 on: abstract sockets and signals reach only this process and its own descendants.
SCOPE_SOCKETS_AND_SIGNALS = 3


def landlock_abi() -> int:
    """Return the version of Landlock in this kernel, or 0 if there is none."""
    if not LINUX:
        return 0
    return max(0, libc().syscall(CREATE, None, ctypes.c_size_t(0), ctypes.c_uint(1)))


def _landlock(readable: list[str], writable: list[str], device: str) -> None:
    abi = landlock_abi()
    if not abi:
        raise Unconfined("this kernel has no Landlock")
    everything = EVERYTHING[min(abi, 5)]
    attributes = struct.pack("QQQ", everything, 0, SCOPE_SOCKETS_AND_SIGNALS if abi >= 6 else 0)
    # Newer ABIs have added fields at the end of the attributes.
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    syscall = libc().syscall
    rules = _check(syscall(CREATE, attributes, ctypes.c_size_t(size), ctypes.c_uint(0)), "Landlock")
    own = [(path, READ) for path in [*readable, f"/proc/{os.getpid()}"]] + [
        (path, everything) for path in writable
    ]
    if device == "cuda":
        own += [(path, DEVICE) for path in gpu_files()] + [(path, READ) for path in OF_DRIVERS]
    for place, rights in [*_common(), *_opened(own)]:
        rule = struct.pack("=Qi", rights & everything, place)
        _check(syscall(ADD_RULE, rules, 1, rule, ctypes.c_uint(0)), "Landlock")
    _check(syscall(RESTRICT, rules, ctypes.c_uint(0)), "Landlock")


def gpu_files(folder: str = "/dev") -> list[str]:
    """Return the files and folders of /dev through which a process uses GPUs.

    /dev/dxg is the GPU in the Windows Subsystem for Linux.
    """
    return sorted(str(p) for name in ("nvidia*", "dxg") for p in Path(folder).glob(name))


def _gpu_groups() -> list[int]:
    """Return the ids of the groups, such as ``video``, that a user must be in to use the GPUs.

    These groups own the GPU files that other users may not both read and write. The group of root
    is left out.
    """
    found = [os.stat(path) for path in gpu_files()]
    return sorted({of.st_gid for of in found if of.st_gid and of.st_mode & 0o006 != 0o006})


def _opened(allowed: list[tuple[str, int]]) -> list[tuple[int, int]]:
    """Return a descriptor of each path, with the rights that make sense for the path.

    Paths that do not exist, or that this process cannot reach, are left out.
    """
    found = []
    for path, rights in allowed:
        try:
            place = os.open(path, os.O_PATH)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EACCES, errno.ENOTDIR):
                continue  # this machine does not have the path, or this process cannot reach it
            raise
        found.append((place, rights if os.path.isdir(path) else rights & OF_FILES))
    return found


@lru_cache
def _common() -> list[tuple[int, int]]:
    """Return descriptors and rights of the paths that every rank may use.

    A rank may read Python, the system and the devices, and it may also write to the devices. The
    paths are opened only one time: ``get_ready`` opens them before ranks are forked.
    """
    return _opened(
        [(path, READ) for path in PYTHONS + SYSTEM]
        + [(path, READ_FILE | WRITE_FILE) for path in DEVICES]
    )


@lru_cache
def _memory() -> int:
    """Return the limit of a rank's data in bytes, including the data that the rank inherits."""
    status = Path("/proc/self/status").read_text()
    return (
        int(status.partition("VmData:")[2].split()[0]) << 10
    ) + machine_limits.rank_memory_limit()


def get_ready() -> None:
    """Fill the caches that all processes forked from this process will use."""
    if LINUX:
        _memory.cache_clear()
        _memory(), _common()


# gloo and the C library look up cores and network interfaces in /sys. The files of /etc are named
# one by one.
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
    "/sys/kernel/mm",
]
# Here a GPU's driver and nccl look up which drivers, devices and links this machine has.
OF_DRIVERS = [
    "/proc/driver",
    "/proc/devices",
    "/proc/modules",
    "/proc/filesystems",
    "/sys/bus/pci",
    "/sys/class/pci_bus",
    "/sys/devices",
    "/sys/module",
]
DEVICES = ["/dev/null", "/dev/zero", "/dev/urandom", "/dev/random"]


def _pythons() -> list[str]:
    """Return the paths of the interpreter, its library, and its packages.

    The folder around a virtual environment is left out, because it may be the grader's own folder.
    """
    paths = sysconfig.get_paths()
    found = {paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")} | {
        sys.executable,
        sys.prefix,
    }
    return sorted({os.path.realpath(path) for path in found} | {sys.base_prefix})


# Computed at import, because later this process may run as a user who cannot read these paths.
PYTHONS = _pythons()


def machine() -> str:
    """Return a text for the instructor: the system's name and release, and its Landlock ABI."""
    return f"{system.system()} {system.release()}, Landlock ABI {landlock_abi()}"
