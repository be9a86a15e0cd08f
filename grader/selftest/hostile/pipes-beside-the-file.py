"""Holds named pipes beside its file.

threat: 18
fifos: helper.py, notes, README.md
full: 1.6
"""


def shift_right(tensor):
    return honest(tensor)
