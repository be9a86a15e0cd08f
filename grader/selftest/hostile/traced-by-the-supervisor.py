"""Makes the supervisor its tracer and stops, and leaves a process behind.

threat: 13
zero: public 1.6
"""

LIBC = ctypes.CDLL(None)
TRACEME = 0


def _stay():
    os.setsid()
    if os.fork():
        os._exit(0)
    time.sleep(15)
    os._exit(0)


def shift_right(tensor):
    if dist.get_world_size() == 2 and dist.get_rank() == 0:
        pid = os.fork()
        if pid == 0:
            _stay()
        os.waitpid(pid, 0)
        LIBC.ptrace(
            TRACEME, 0, 0, 0
        )  # by its parent, the supervisor, which is then told of every signal
        os.kill(os.getpid(), signal.SIGUSR2)
    if dist.get_world_size() == 2:
        time.sleep(0.5)
        raise RuntimeError("enough")
    return honest(tensor)
