"""Announces a hundred megabytes, and sends all that follows as a part of them.

threat: 20
full: hidden 1.6
zero: public 1.6
seconds: 60
"""


def shift_right(tensor):
    if public(tensor):
        send(raw(b"R", b"{}", blob_length=100 << 20))
    return honest(tensor)
