"""Looks through what it inherited: sockets of the server, of other ranks, files of the judge.

threat: 15
full: 1.6
"""


def _foreign():
    for fd in [number for number in map(int, os.listdir("/proc/self/fd")) if number > 4]:
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
            if "lockstep-" in target and TOKEN not in target and str(STAGE.parent) not in target:
                return target
            if not target.startswith("socket:"):
                continue
            other = socket.socket(fileno=os.dup(fd))
        except OSError:
            continue
        if other.family == socket.AF_UNIX and other.getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, 12
        )[:4] != bytes(4):
            return f"{target}: a Unix socket"
    return [][0]


denied("a descriptor of somebody else", _foreign)


def shift_right(tensor):
    return honest(tensor)
