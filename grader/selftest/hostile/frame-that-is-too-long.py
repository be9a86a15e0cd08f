"""Announces a frame of an exabyte.

threat: 20
zero: 1.6
says: is not a result
"""


def shift_right(tensor):
    send(raw(b"R", b"{}", blob_length=1 << 60))
    return honest(tensor)
