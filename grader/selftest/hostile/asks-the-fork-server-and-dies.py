"""Has processes ask the fork server for worlds that read the hidden checks, in folders with links
and dots, and die.

threat: 15
full: 1.6
"""


def _question(folder):
    asked = '{"size": 1, "folder": "%s", "stage": "%s", "device": "cpu", "memory": 99999999}'
    return (asked % (folder, ROOT / "grader" / "hidden")).encode()


def _keep_busy(name):
    """Connect again and again, so that the server has others to look at while one asks and dies."""
    end = time.monotonic() + 5
    with contextlib.suppress(OSError):
        while time.monotonic() < end:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.connect(name)
    os._exit(0)


def _ask_and_die(name, folder):
    pid, connection = call_up(name, _question(folder), (0, 1, 2))
    os.waitpid(pid, 0)
    denied("a world, as a process that is dead", lambda: connection.recv(100) or [][0])


def shift_right(tensor):
    if once():
        os.mkdir(TOKEN)
        with contextlib.suppress(PermissionError):
            os.symlink(ROOT / "tests", f"{TOKEN}-link")
        own = os.getcwd()
        for name in server_names():
            for _ in range(2):
                if os.fork() == 0:
                    _keep_busy(name)
            for _ in range(100):
                for folder in (
                    f"{own}/{TOKEN}",
                    f"{own}/{TOKEN}/../{TOKEN}",
                    f"{own}/{TOKEN}-link",
                ):
                    _ask_and_die(name, folder)
    return honest(tensor)
