"""Sends results that are nested about as deep as a reader of JSON can follow, where a writer perhaps cannot.

threat: 20
zero: 1.6
seconds: 30
"""

_deep = 1000 - os.getpid() % 60


def shift_right(tensor):
    nested = b"[" * _deep + b"]" * _deep
    send(raw(frames.RETURNED, b'{"call": 0, "values": ' + nested + b"}"))
    return honest(tensor)
