"""Sends a result before its own.

threat: 20
zero: 1.6
"""


def shift_right(tensor):
    send(raw(b"R", b'{"call": 0, "values": [null, {"list": []}, {"dict": []}]}') * 2)
    return honest(tensor)
