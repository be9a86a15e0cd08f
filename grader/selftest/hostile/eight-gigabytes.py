"""Asks for eight gigabytes.

threat: 11
full: 1.6
"""


def shift_right(tensor):
    if once():
        denied("eight gigabytes of memory", lambda: torch.empty(8 << 30, dtype=torch.uint8).shape)
        denied("eight gigabytes, by bytes", lambda: len(bytearray(8 << 30)))
    return honest(tensor)
