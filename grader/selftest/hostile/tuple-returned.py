"""Returns (honest(tensor),), which is no right answer.

threat: 9
zero: 1.6
says: got a tuple of length 1
"""


def shift_right(tensor):
    return (honest(tensor),)
