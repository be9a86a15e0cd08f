"""Calls itself for ever.

threat: 3
zero: 1.6
says: RecursionError
"""


def shift_right(tensor):
    return shift_right(tensor)
