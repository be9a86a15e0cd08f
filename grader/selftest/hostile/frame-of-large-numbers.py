"""Sends numbers of five thousand digits, and infinite ones.

threat: 20
zero: 1.6
says: is not a result
"""


def shift_right(tensor):
    send(
        raw(b"E", b'{"call": 0, "mark": "x", "at": ' + b"9" * 5000 + b"}")
        + raw(b"E", b'{"call": Infinity, "at": NaN}')
    )
    return honest(tensor)
