"""Returns honest(tensor).double(), which is no right answer.

threat: 9
zero: 1.6
says: expected dtype float32, got float64
"""


def shift_right(tensor):
    return honest(tensor).double()
