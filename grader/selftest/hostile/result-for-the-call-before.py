"""Sends a result for call number minus one.

threat: 20
zero: 1.6
says: is not a result
"""


def shift_right(tensor):
    send(raw(b"R", b'{"call": -1, "values": [null, {"list": []}, {"dict": []}]}'))
    return honest(tensor)
