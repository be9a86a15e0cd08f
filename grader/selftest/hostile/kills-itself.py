"""Sends itself SIGKILL.

threat: 11
zero: 1.6
says: killed by SIGKILL
"""


def shift_right(tensor):
    os.kill(os.getpid(), signal.SIGKILL)
