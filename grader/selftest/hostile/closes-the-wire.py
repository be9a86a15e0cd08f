"""Closes its socket, and sends nothing more.

threat: 20
zero: 1.6
seconds: 30
"""


def shift_right(tensor):
    os.close(3)
    return honest(tensor)
