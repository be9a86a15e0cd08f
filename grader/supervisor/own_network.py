"""Gives a process and its children a network of their own, without a connection to the outside.

Ranks on gloo connect to each other through ports of this machine. If ranks shared a network with
other programs, they could also connect to other machines, and to the ranks of another grading.
After the end of the ranks, other programs could see for a minute which ports the ranks had used.
"""

import contextlib
import ctypes
import fcntl
import os
import socket
import struct
import sys
from pathlib import Path

CLONE_NEWNET = 0x40000000
SIOCSIFFLAGS, IFF_UP = 0x8914, 1  # for ioctl: set the flags of an interface; the flag “up”
DRIVER = Path("/dev/nvidiactl")  # on machines with GPUs; there, nccl may need the real network


def leave() -> bool:
    """Move this process into a new network that has only a loopback interface.

    Return True if this process is now in the new network. On machines with GPUs, or if the system
    is not Linux, do nothing and return False. The move needs CAP_SYS_ADMIN, which most containers
    do not grant.
    """
    if not sys.platform.startswith("linux") or DRIVER.exists():
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    with contextlib.suppress(OSError):
        before = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            if libc.unshare(CLONE_NEWNET) != 0:
                return False
            try:
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
                    request = struct.pack("16sH14s", b"lo", IFF_UP, b"")
                    fcntl.ioctl(any_socket, SIOCSIFFLAGS, request)
                return True
            except OSError:
                # Go back to the old network, because gloo needs the loopback interface.
                libc.setns(before, CLONE_NEWNET)
        finally:
            os.close(before)
    return False
