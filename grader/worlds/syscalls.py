"""System calls that a rank does without: those that give memory which no process is charged with.

A file of ``memfd_create`` and a segment of ``shmget`` lie in memory until they are gone. Pages of them that no process has mapped are
in nobody's account, and a descriptor of one may hide in the queue of a socket. The calls fail as on a kernel that lacks them, so that
libraries fall back on something else.
"""

import contextlib
import ctypes
import errno
import os
import platform
import struct

PR_SET_DUMPABLE = 4
SECCOMP_SET_MODE_FILTER = 1
SPEC_ALLOW = 1 << 2  # without this flag, kernels before 5.16 slow the whole process down
# By machine: the number of its call interface, of seccomp(2), and of what is refused: memfd_create, memfd_secret, shmget; and prctl.
MACHINES = {
    "x86_64": (0xC000003E, 317, (319, 447, 29), 157),
    "aarch64": (0xC00000B7, 277, (279, 447, 194), 167),
}
OTHER_INTERFACE = 1 << 30  # a bit in the numbers of x32, which x86_64 has besides

# Berkeley packet filter: load a word, compare it with a constant and jump, return a constant.
LOAD, EQUAL, AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
NUMBER, INTERFACE, FIRST_ARGUMENT = 0, 4, 16  # where these stand in what the filter sees
ALLOW, FAIL = 0x7FFF0000, 0x00050000


def refuse() -> bool:
    """Refuse these calls to this process, and to what it starts, for good; return whether that works here.

    It can no longer hide from the process that watches it, either: that looks at its open files.
    """
    if platform.machine() not in MACHINES:
        return False
    interface, seccomp, refused, prctl = MACHINES[platform.machine()]
    fail = (RETURN, 0, 0, FAIL | errno.ENOSYS)
    program = [(LOAD, 0, 0, INTERFACE), (EQUAL, 1, 0, interface), fail, (LOAD, 0, 0, NUMBER)]
    program += [(AT_LEAST, 0, 1, OTHER_INTERFACE), fail]
    for number in refused:
        program += [(EQUAL, 0, 1, number), fail]
    program += [(EQUAL, 0, 3, prctl), (LOAD, 0, 0, FIRST_ARGUMENT), (EQUAL, 0, 1, PR_SET_DUMPABLE), fail]
    program += [(RETURN, 0, 0, ALLOW)]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    header = struct.pack("HxxxxxxP", len(program), ctypes.addressof(code))
    with contextlib.suppress(OSError):
        libc = ctypes.CDLL(None, use_errno=True)
        for flags in (SPEC_ALLOW, 0):
            if libc.syscall(seccomp, SECCOMP_SET_MODE_FILTER, ctypes.c_uint(flags), header) == 0:
                return True
    return False
