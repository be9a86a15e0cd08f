"""Raises an exception whose text raises another.

threat: 26
zero: 1.6
says: Shy
"""


class Shy(Exception):
    def __str__(self):
        raise SystemExit("no text for you")

    __repr__ = __str__


def shift_right(tensor):
    raise Shy
