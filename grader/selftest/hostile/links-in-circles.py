"""Holds links to itself and to nowhere beside its file.

threat: 18
links: handout = ., loop = loop, root = /, nowhere = /nowhere
full: 1.6
"""


def shift_right(tensor):
    return honest(tensor)
