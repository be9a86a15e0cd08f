"""Returns honest(tensor)[None], which is no right answer.

threat: 9
zero: 1.6
says: expected shape (4,), got (1, 4)
"""


def shift_right(tensor):
    return honest(tensor)[None]
