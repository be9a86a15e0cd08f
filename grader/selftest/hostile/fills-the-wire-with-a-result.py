"""Returns more than may be sent.

threat: 20
zero: 1.6
says: too large to judge
"""


def shift_right(tensor):
    return torch.zeros(20 << 20)
