"""Brings a compiled file that is right beside a source that is wrong.

threat: 17
zero: 1.6
"""


def shift_right(tensor):
    return tensor


# --- compiled: collectives.py
def shift_right(tensor):
    return honest(tensor)
