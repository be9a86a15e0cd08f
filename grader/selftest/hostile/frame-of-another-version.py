"""Sends a frame of a version to come.

threat: 20
zero: 1.6
says: is not a result
"""


def shift_right(tensor):
    send(raw(b"R", b"{}", version=9))
    return honest(tensor)
