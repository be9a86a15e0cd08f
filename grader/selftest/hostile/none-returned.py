"""Returns None, which is no right answer.

threat: 9
zero: 1.6
says: got None
"""


def shift_right(tensor):
    return None
