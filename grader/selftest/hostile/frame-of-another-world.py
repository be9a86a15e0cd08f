"""Sends a frame with the nonce of another world.

threat: 20
zero: 1.6
says: is not a result
"""


def shift_right(tensor):
    send(raw(b"D", b"{}", of=bytes(8)))
    return honest(tensor)
