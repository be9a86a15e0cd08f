"""Holds files whose names are no UTF-8, or hold escapes.

threat: 18
binary: hex:ff2e7079 = 00, hex:1b5b324a2e7079 = 00, hex:e280ae2e7079 = 00
full: 1.6
"""


def shift_right(tensor):
    return honest(tensor)
