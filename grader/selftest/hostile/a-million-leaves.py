"""Returns a list of half a million numbers.

threat: 20
zero: 1.6
says: cannot be sent
"""


def shift_right(tensor):
    return list(range(500_000))
