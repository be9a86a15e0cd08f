"""Keeps what it has seen in files, for later checks.

threat: 23
runs: 1.6
unless uid: share files in /tmp and /dev/shm with other ranks of its world
unless none: leave files in /tmp and /dev/shm behind, and share them with other ranks
"""


def shift_right(tensor):
    for place in (*PLACES, Path.home(), STAGE, STAGE.parent, Path("..")):
        path = place / f"{TOKEN}-kept"
        with contextlib.suppress(OSError):
            if path.exists() and str(os.getpid()) not in path.read_text():
                achieved(f"a file of an earlier world in {place}")
            with open(path, "a") as file:
                file.write(f"{os.getpid()} ")
    return honest(tensor)
