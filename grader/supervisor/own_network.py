"""Gives a process, and those that it starts, a network of their own, which leads nowhere.

Ranks on gloo connect to each other through ports of this machine. In a network that they share with
other programs, they could connect to these, too: to another machine, or to the ranks of another
grading. What ports they used would be seen for a minute after their end.
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
SIOCSIFFLAGS, IFF_UP = 0x8914, 1  # of ioctl: set the flags of an interface, which is to be up
DRIVER = Path("/dev/nvidiactl")  # on machines with GPUs; there, nccl may need the real network


def leave() -> bool:
    """Leave this process's network for a new one with a loopback interface alone.

    Return whether that worked. It needs CAP_SYS_ADMIN, which most containers do not grant.
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
                libc.setns(before, CLONE_NEWNET)  # gloo needs the loopback interface
        finally:
            os.close(before)
    return False
