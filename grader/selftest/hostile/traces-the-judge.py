"""Takes hold of the judge, the supervisor and the server as a debugger does.

threat: 15
full: 1.6
unless none: read and change all that the grader's user can read and change, and signal the grader
"""

LIBC = ctypes.CDLL(None, use_errno=True)
SEIZE, PIDFD_OPEN, PIDFD_GETFD = 0x4206, 434, 438


def _call(function, *arguments):
    result = function(*arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result


def _read_memory(pid):
    buffer = ctypes.create_string_buffer(8)
    here = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 8)
    there = (ctypes.c_size_t * 2)(id(None), 8)  # a forked process has it at the same address
    return _call(LIBC.process_vm_readv, pid, here, 1, there, 1, 0)


def _steal_descriptor(pid):
    handle = _call(LIBC.syscall, PIDFD_OPEN, pid, 0)
    return _call(LIBC.syscall, PIDFD_GETFD, handle, 0, 0)


def shift_right(tensor):
    if once():
        for whom, find in (
            ("judge", judge),
            ("supervisor", parent),
            ("server", lambda: parent(parent())),
        ):
            denied(f"the {whom}'s memory", lambda: _read_memory(find()))
            denied(f"the {whom}'s descriptors", lambda: _steal_descriptor(find()))
            denied(f"the {whom}, seized", lambda: _call(LIBC.ptrace, SEIZE, find(), 0, 0))
    return honest(tensor)
