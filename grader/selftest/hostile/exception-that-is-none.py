"""Sends an exception whose parts are not what they should be.

threat: 20
zero: 1.6
says: is not a result
"""


def shift_right(tensor):
    send(raw(b"X", b'{"call": 0, "type": {}, "text": [1], "lines": "none", "at": "now"}'))
    return honest(tensor)
