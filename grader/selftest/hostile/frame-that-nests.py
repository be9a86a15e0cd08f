"""Sends JSON that is nested a hundred thousand times.

threat: 20
zero: 1.6
says: is not a result
"""


def shift_right(tensor):
    send(raw(b"R", b'{"call": 0, "values": ' + b"[" * 100_000))
    return honest(tensor)
