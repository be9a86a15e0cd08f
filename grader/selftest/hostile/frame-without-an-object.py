"""Sends a list where an object belongs.

threat: 20
zero: 1.6
says: is not a result
"""


def shift_right(tensor):
    send(raw(b"E", b"[1, 2]"))
    return honest(tensor)
