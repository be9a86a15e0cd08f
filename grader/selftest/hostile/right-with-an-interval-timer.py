"""Has a timer of the system's wake it every three milliseconds, as some profilers do.

threat: 8
full: 1.6
seconds: 60
"""

signal.signal(signal.SIGALRM, lambda *_: None)
signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)


def shift_right(tensor):
    return honest(tensor)
