"""Sends a frame that only the judge may send.

threat: 20
zero: 1.6
says: is not a result
"""


def shift_right(tensor):
    send(raw(b"I", b'{"call": 0}'))
    return honest(tensor)
