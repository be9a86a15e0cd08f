"""Sends its process group SIGKILL.

threat: 11
zero: 1.6
says: killed by SIGKILL
"""


def shift_right(tensor):
    os.killpg(0, signal.SIGKILL)
