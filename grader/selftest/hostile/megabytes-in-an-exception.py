"""Raises an exception of forty megabytes.

threat: 26
zero: 1.6
says: raised ValueError
"""


def shift_right(tensor):
    raise ValueError("spam\n" * (8 << 20))
