"""This module makes the kernel refuse system calls that a rank does not need (with seccomp).

The refusal cannot be undone.

Some of these calls give a rank memory that the kernel counts for no process. For example, a file of
``memfd_create`` and a segment of ``shmget`` stay in memory until they are removed. While no process
maps their pages, the pages count for no process. A rank could even hide a descriptor of such a file
in the queue of a socket. All calls that give such memory fail as if the kernel lacked them. So
libraries use something else.

Other calls reach another process. A rank whose operations go through the hub does not need such
calls. If a check measures memory, its ranks may not start processes either. The system forgets the
peak memory of a process when the process ends.
"""

import contextlib
import ctypes
import errno
import platform
import struct
import sys
from collections.abc import Iterable

PR_SET_DUMPABLE = 4
SECCOMP_SET_MODE_FILTER = 1
SPEC_ALLOW = 1 << 2  # without this flag, kernels before 5.16 slow the whole process down
# By machine: the number of its call interface, the number of seccomp(2), and that of prctl(2).
MACHINES = {"x86_64": (0xC000003E, 317, 157), "aarch64": (0xC00000B7, 277, 167)}
# The numbers of system calls, by machine.
UNCHARGED = {
    # With ``vmsplice``, one byte in a pipe can keep a huge page in memory.
    # The kernel keeps keys for days after the last process of their user has ended.
    "x86_64": {
        **{"memfd_create": 319, "memfd_secret": 447, "shmget": 29, "vmsplice": 278},
        **{"add_key": 248, "request_key": 249, "keyctl": 250},
    },
    "aarch64": {
        **{"memfd_create": 279, "memfd_secret": 447, "shmget": 194, "vmsplice": 75},
        **{"add_key": 217, "request_key": 218, "keyctl": 219},
    },
}
# The newer calls for mounting, which have the same numbers on all machines.
MOUNTING = {
    **{"open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432},
    **{"fspick": 433, "mount_setattr": 442, "open_tree_attr": 467},
}
CONNECTING = {
    "x86_64": {
        **{"socket": 41, "connect": 42, "accept": 43, "bind": 49, "listen": 50, "accept4": 288},
        # The first two can send descriptors. A descriptor that is sent but not yet received belongs
        # to no process, so nobody can see it. The third lets sockets buffer more data.
        **{"sendmsg": 46, "sendmmsg": 307, "setsockopt": 54},
        **{"msgget": 68, "semget": 64, "mq_open": 240},
        **{"ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312},
        **{"pidfd_open": 434, "pidfd_getfd": 438, "open_by_handle_at": 304},
        **{"unshare": 272, "setns": 308, "mount": 165, "pivot_root": 155, **MOUNTING},
        # With io_uring, a program could do all of the above, and the filter would not see it.
        **{"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427},
        **{"bpf": 321, "perf_event_open": 298, "userfaultfd": 323},
        # With these, processes could communicate through files that all processes may read.
        **{"flock": 73, "inotify_init": 253, "inotify_init1": 294, "fanotify_init": 300},
        # These read or set properties of a process. Other processes can see these properties.
        **{"getpriority": 140, "setpriority": 141, "ioprio_get": 252, "ioprio_set": 251},
        **{
            "getpgid": 121,
            "getsid": 124,
            "sched_getparam": 143,
            "sched_getscheduler": 145,
            "sched_getattr": 315,
        },
        **{"sched_setaffinity": 203, "sched_rr_get_interval": 148},
        # Some operations of a futex have system calls of their own.
        **{"futex_waitv": 449, "futex_wake": 454, "futex_wait": 455, "futex_requeue": 456},
        # These make names, which can contain text, or change attributes of a file. A process may
        # see these attributes even if it may not read the file.
        **{
            "symlink": 88,
            "symlinkat": 266,
            "link": 86,
            "linkat": 265,
            "mknod": 133,
            "mknodat": 259,
        },
        **{"chmod": 90, "fchmod": 91, "fchmodat": 268, "fchmodat2": 452},
        **{"utime": 132, "utimes": 235, "futimesat": 261, "utimensat": 280},
        **{"setxattr": 188, "lsetxattr": 189, "fsetxattr": 190, "setxattrat": 463},
        # These change or show which pages of a file are in memory. The last three read a file
        # asynchronously, and their results show which pages were there. So processes could
        # communicate through a file that all processes may read.
        **{"fadvise64": 221, "readahead": 187, "preadv2": 327, "mincore": 27, "cachestat": 451},
        **{"io_setup": 206, "io_submit": 209, "io_pgetevents": 333},
    },
    "aarch64": {
        **{
            "socket": 198,
            "connect": 203,
            "accept": 202,
            "bind": 200,
            "listen": 201,
            "accept4": 242,
        },
        **{"sendmsg": 211, "sendmmsg": 269, "setsockopt": 208},
        **{"msgget": 186, "semget": 190, "mq_open": 180},
        **{"ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "kcmp": 272},
        **{"pidfd_open": 434, "pidfd_getfd": 438, "open_by_handle_at": 265},
        **{"unshare": 97, "setns": 268, "mount": 40, "pivot_root": 41, **MOUNTING},
        **{"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427},
        **{"bpf": 280, "perf_event_open": 241, "userfaultfd": 282},
        **{"flock": 32, "inotify_init1": 26, "fanotify_init": 262},
        **{"getpriority": 141, "setpriority": 140, "ioprio_get": 31, "ioprio_set": 30},
        **{
            "getpgid": 155,
            "getsid": 156,
            "sched_getparam": 121,
            "sched_getscheduler": 120,
            "sched_getattr": 275,
        },
        **{"sched_setaffinity": 122, "sched_rr_get_interval": 127},
        **{"futex_waitv": 449, "futex_wake": 454, "futex_wait": 455, "futex_requeue": 456},
        **{
            "symlinkat": 36,
            "linkat": 37,
            "mknodat": 33,
            "fchmod": 52,
            "fchmodat": 53,
            "fchmodat2": 452,
            "utimensat": 88,
        },
        **{"setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "setxattrat": 463},
        **{"fadvise64": 223, "readahead": 213, "preadv2": 286, "mincore": 232, "cachestat": 451},
        **{"io_setup": 0, "io_submit": 2, "io_pgetevents": 292},
    },
}
FCNTL = {"x86_64": 72, "aarch64": 25}
# The commands of fcntl(2) that lock a part of a file, lease a file, or ask for a signal. They are
# refused because another process can notice them. The last command sets the size of a pipe. It is
# refused because the data in a pipe do not count as the memory of any process.
SHARING = (5, 6, 7, 36, 37, 38, 8, 10, 15, 1024, 1026, 1031)
# The calls that start a process. clone and clone3 also start threads; aarch64 has only these two.
FORKS = {"x86_64": {"fork": 57, "vfork": 58}, "aarch64": {}}
CLONE, CLONE3 = {"x86_64": 56, "aarch64": 220}, 435
# The bits in the first argument of clone that give a new process a namespace of its own, as unshare
# does. ``ipc`` is for System V's objects, and ``uts`` for host names.
NAMESPACES = {
    **{"user": 0x10000000, "mount": 0x20000, "pid": 0x20000000, "net": 0x40000000},
    **{"ipc": 0x8000000, "uts": 0x4000000, "cgroup": 0x2000000, "time": 0x80},
}
THREAD = 0x10000  # a bit in the first argument of clone: it starts a thread of this process
FUTEX = {"x86_64": 202, "aarch64": 98}
PRIVATE = 128  # a bit of a futex operation: it is for the threads of one process only
OPERATIONS = 127  # the bits that tell which futex operation it is
# Two operations that wait, here without the bit PRIVATE. The C library joins a thread with
# WAIT_BITSET, and the kernel ends this wait. The C++ library uses WAIT while another thread
# initialises a static variable. This wait would never end, because the filter refuses the operation
# that wakes a thread. So WAIT fails as if the word in memory had changed, and the library reads the
# word again.
WAIT, WAIT_BITSET = 0, 9
CLOCK_GETTIME = {"x86_64": 228, "aarch64": 113}
OF_PROCESSES = 1 << 31  # clock numbers from here on are negative: clocks of processes
OTHER_INTERFACE = 1 << 30  # a bit in the numbers of x32, the other interface of x86_64

# Instructions of the Berkeley packet filter: load a word, compare it with a constant and jump,
# combine it with a constant, return a constant. A line of a filter is (instruction, lines to skip
# if the comparison holds, lines to skip otherwise, constant).
LOAD, EQUAL, AT_LEAST, HAS_BIT, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
# the positions, in bytes, of these fields in the data that the filter sees
NUMBER, INTERFACE, FIRST_ARGUMENT, SECOND_ARGUMENT = 0, 4, 16, 24
ALLOW, FAIL = 0x7FFF0000, 0x00050000


def refuse_uncharged_memory() -> bool:
    """Refuse memory that the kernel counts for no process. Return whether this kernel does so.

    The refusal applies to this process and to all processes that it starts. Also refuse
    ``PR_SET_DUMPABLE``, with which a process could hide its open files from the process that
    watches it.
    """
    if not can_refuse():
        return False
    _, _, prctl = MACHINES[platform.machine()]
    fail = (RETURN, 0, 0, FAIL | errno.ENOSYS)
    hiding = [
        (EQUAL, 0, 3, prctl),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (EQUAL, 0, 1, PR_SET_DUMPABLE),
        fail,
    ]
    return _install([*_refused(UNCHARGED[platform.machine()].values(), errno.ENOSYS), *hiding])


def refuse_connections() -> bool:
    """Refuse system calls that could reach another process. Return whether this kernel does so.

    These are the calls in ``CONNECTING``, and some operations of other calls. The descriptors that
    are already open can still be used. A new process may not have a namespace of its own. A filter
    cannot see the options of ``clone3``. So ``clone3`` fails as if the kernel did not have it, and
    the C library calls ``clone`` in its place.
    """
    if not can_refuse():
        return False
    machine = platform.machine()
    fail = (RETURN, 0, 0, FAIL | errno.EPERM)
    again = (LOAD, 0, 0, NUMBER)
    kind = [
        (HAS_BIT, 5, 0, PRIVATE),
        (AND, 0, 0, OPERATIONS),
        (EQUAL, 3, 0, WAIT_BITSET),
        (EQUAL, 0, 1, WAIT),
        (RETURN, 0, 0, FAIL | errno.EAGAIN),
        fail,
    ]
    wakes = [
        (EQUAL, 0, 2 + len(kind), FUTEX[machine]),
        (LOAD, 0, 0, SECOND_ARGUMENT),
        *kind,
        again,
    ]
    others = [(AT_LEAST, 0, 1, OF_PROCESSES), fail]
    clocks = [(EQUAL, 0, 4, CLOCK_GETTIME[machine]), (LOAD, 0, 0, FIRST_ARGUMENT), *others, again]
    sharing = _refused(SHARING, errno.EPERM)
    locks = [(EQUAL, 0, 1 + len(sharing), FCNTL[machine]), (LOAD, 0, 0, SECOND_ARGUMENT), *sharing]
    cloned = [
        (EQUAL, 0, 4, CLONE[machine]),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (HAS_BIT, 0, 1, sum(NAMESPACES.values())),
        fail,
        again,
    ]
    calls = _refused(CONNECTING[machine].values(), errno.EPERM)
    newer = _refused([CLONE3], errno.ENOSYS)
    return _install([*calls, *newer, *wakes, *clocks, *cloned, *locks])


def refuse_processes() -> bool:
    """Refuse to start processes, but not threads. Return whether this kernel does so.

    A filter cannot see whether ``clone3`` starts a thread or a process. So ``clone3`` fails as if
    the kernel did not have it, and the C library calls ``clone`` in its place.
    """
    if not can_refuse():
        return False
    machine = platform.machine()
    fail = (RETURN, 0, 0, FAIL | errno.EPERM)
    cloned = [
        (EQUAL, 0, 4, CLONE[machine]),
        (LOAD, 0, 0, FIRST_ARGUMENT),
        (HAS_BIT, 1, 0, THREAD),
        fail,
        (LOAD, 0, 0, NUMBER),
    ]
    forks = _refused(FORKS[machine].values(), errno.EPERM)
    return _install([*forks, *_refused([CLONE3], errno.ENOSYS), *cloned])


def can_refuse() -> bool:
    """Return whether the numbers of this machine's system calls are known."""
    return sys.platform.startswith("linux") and platform.machine() in MACHINES


def _refused(numbers: Iterable[int], error: int) -> list[tuple]:
    return [
        line for number in numbers for line in ((EQUAL, 0, 1, number), (RETURN, 0, 0, FAIL | error))
    ]


def _install(lines: list[tuple]) -> bool:
    """Make the kernel run these lines of a filter at each system call. Return whether it does so.

    The number of the call is loaded before the first line. Calls of another interface fail.
    """
    interface, seccomp, _ = MACHINES[platform.machine()]
    fail = (RETURN, 0, 0, FAIL | errno.ENOSYS)
    program = [(LOAD, 0, 0, INTERFACE), (EQUAL, 1, 0, interface), fail, (LOAD, 0, 0, NUMBER)]
    program += [(AT_LEAST, 0, 1, OTHER_INTERFACE), fail, *lines, (RETURN, 0, 0, ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    with contextlib.suppress(OSError):
        libc = ctypes.CDLL(None, use_errno=True)
        for flags in (SPEC_ALLOW, 0):
            if libc.syscall(seccomp, SECCOMP_SET_MODE_FILTER, ctypes.c_uint(flags), header) == 0:
                return True
    return False
