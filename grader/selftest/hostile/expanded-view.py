"""Returns honest(tensor)[:1].expand(tensor.shape), which is no right answer.

threat: 9
zero: 1.6
says: elements share memory
"""


def shift_right(tensor):
    return honest(tensor)[:1].expand(tensor.shape)
