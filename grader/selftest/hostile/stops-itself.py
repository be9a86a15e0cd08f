"""Stops its process, which then neither runs nor ends.

threat: 6
full: hidden 1.6
zero: public 1.6
seconds: 60
"""


def shift_right(tensor):
    if public(tensor):
        os.kill(os.getpid(), signal.SIGSTOP)
    return honest(tensor)
