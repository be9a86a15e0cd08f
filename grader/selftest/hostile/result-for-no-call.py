"""Sends a result for a call that does not exist.

threat: 20
zero: 1.6
says: is not a result
"""


def shift_right(tensor):
    send(raw(b"R", b'{"call": 7, "values": [null, {"list": []}, {"dict": []}]}'))
    return honest(tensor)
