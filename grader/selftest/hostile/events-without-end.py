"""Sends sixty thousand marks.

threat: 20
zero: 1.6
says: operations
"""


def shift_right(tensor):
    send(raw(b"E", b'{"call": 0, "mark": "again", "at": 1}') * 60_000)
    return honest(tensor)
