"""Reads where nothing is.

threat: 11
zero: 1.6
says: SIGSEGV
"""


def shift_right(tensor):
    ctypes.string_at(8)
