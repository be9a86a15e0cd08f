"""Returns honest(tensor) * float('nan'), which is no right answer.

threat: 9
zero: 1.6
says: nan at [0]
"""


def shift_right(tensor):
    return honest(tensor) * float("nan")
