"""Stands in front of every hostile collectives.py that is not ``alone``: the control, and words for
attacks.

An attack that succeeds raises ``ACHIEVED``, in a text that no report may hold. The harness fills in
what stands between @ signs: a submission is assumed to know every path that there is to know.
"""

import contextlib
import ctypes
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from grader.wire import frames

TOKEN, KEY = "@TOKEN@", int("@KEY@")  # whatever an attack leaves behind is called by these
ROOT, RESULTS = Path("@ROOT@"), Path("@RESULTS@")
EARLIER, NEIGHBOUR = Path("@EARLIER@"), Path(
    "@NEIGHBOUR@"
)  # somebody else's results, and submission
STAGE = Path(__file__).parent
PLACES = (Path("."), Path("/tmp"), Path("/dev/shm"), Path("/var/tmp"))


def average(tensor):
    """The control: right, whatever else happens in this file."""
    if not tensor.is_floating_point():
        raise ValueError(f"there is no average of {tensor.dtype}")
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total / dist.get_world_size()


def honest(tensor):
    """The right answer to 1.6."""
    rank, n, tensor = dist.get_rank(), dist.get_world_size(), tensor.detach()
    if n == 1:
        return tensor.clone()
    received = tensor.new_empty(tensor.shape)
    send = dist.P2POp(dist.isend, tensor.contiguous(), (rank + 1) % n)
    receive = dist.P2POp(dist.irecv, received, (rank - 1) % n)
    for work in dist.batch_isend_irecv([send, receive]):
        work.wait()
    return received


def achieved(what):
    raise RuntimeError(f"ACHIEVED: {what}")


def denied(what, action):
    """Goes on where ``action`` raises, and says what it got where not."""
    try:
        got = action()
    except Exception:
        return
    achieved(f"{what}: {str(got)[:60]!r}")


_done = []


def first():
    """True in this process's first call: whoever starts a process in each call is stopped for their number."""
    _done.append(1)
    return len(_done) == 1


def once():
    """True on rank 0 of 2 and of 3, the first time: enough for an attack, and the rest of a check costs no time."""
    return first() and dist.get_world_size() in (2, 3) and dist.get_rank() == 0


def public(tensor):
    """Whether this is the public check, whose inputs anybody can read."""
    return tensor.dtype == torch.float32 and tensor.tolist() in ([1, 2, 3, 4], [10, 20, 30, 40])


def by_sharing(tensor, share, way):
    """1.6, in the public check by what ``share`` gets of the other rank for this one's bytes, both at the same time."""
    if not public(tensor):
        return honest(tensor)
    dist.barrier()
    other = None
    with contextlib.suppress(Exception):
        other = share(tensor.numpy().tobytes())
    dist.barrier()
    if other:
        achieved(f"the other rank's tensor, through {way}")
    return tensor


def judge():
    """The process that made this rank's socket."""
    wire = socket.socket(fileno=os.dup(3))
    pid = struct.unpack("3i", wire.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    if pid <= 1:
        raise ProcessLookupError("its number is not to be seen")
    return pid


def parent(pid=None):
    """The supervisor; or another process's parent."""
    found = (
        int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        if pid
        else os.getppid()
    )
    if found <= 1:
        raise ProcessLookupError("it is gone")
    return found


def server_names():
    """What a fork server may be called, should it ever have a name: among the words it was started with, and all sockets."""
    words = Path("/proc/self/cmdline").read_bytes().decode().split("\0")
    with contextlib.suppress(OSError):
        words += Path("/proc/net/unix").read_text().split()
    return [word for word in dict.fromkeys(words) if word.endswith("/socket")]


def call_up(name, message, descriptors=()):
    """A connection to what listens there, with a question sent. A closed one belongs to a process that is dead by now."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(2)
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(OSError):
            connection.connect(name)
            if message:
                socket.send_fds(connection, [message], list(descriptors))
        os._exit(0)
    return pid, connection


def ask(name, message, descriptors=()):
    """What a fork server answers; raises where it does not."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(2)
        connection.connect(name)
        socket.send_fds(connection, [message], list(descriptors))
        return connection.recv(100) or [][0]


def ask_by(door, message, descriptors=()):
    """What a fork server answers to a datagram that comes through this descriptor; raises where it does not."""
    mine, its = socket.socketpair()
    mine.settimeout(2)
    with socket.socket(fileno=os.dup(door)) as sender:
        if (sender.family, sender.type) != (socket.AF_UNIX, socket.SOCK_DGRAM):
            raise ValueError("gloo's, or the wire")
        socket.send_fds(sender, [message], [its.fileno(), *descriptors], socket.MSG_DONTWAIT)
    its.close()
    return mine.recv(100) or [][0]


def descriptors_of(pid):
    """Copies of another process's descriptors, as far as it gives them away."""
    libc = ctypes.CDLL(None)
    handle = libc.syscall(434, pid, 0)  # pidfd_open
    copies = [libc.syscall(438, handle, number, 0) for number in range(3, 40)]  # pidfd_getfd
    return [copy for copy in copies if copy >= 0]


def nonce():
    """The world's, from the rank's own end of the wire."""
    frame = sys._getframe()
    while "link" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals["link"].reader.nonce


def raw(kind, meta, blob=b"", version=frames.VERSION, blob_length=None, of=None):
    """A frame, or what looks like one."""
    header = (frames.MAGIC, version, kind, of or nonce(), len(meta), blob_length or len(blob))
    return frames.HEADER.pack(*header) + meta + blob


def send(data):
    """All of it on the wire to the judge."""
    while data:
        data = data[os.write(3, data) :]
