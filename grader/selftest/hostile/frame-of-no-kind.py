"""Sends a frame of a kind that does not exist.

threat: 20
zero: 1.6
says: is not a result
"""


def shift_right(tensor):
    send(raw(b"?", b"{}"))
    return honest(tensor)
