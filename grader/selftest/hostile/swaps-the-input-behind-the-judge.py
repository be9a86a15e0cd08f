"""Lets its input share the memory of another tensor.

threat: 10
zero: 1.6
"""


def shift_right(tensor):
    tensor.set_(torch.zeros_like(tensor).contiguous())
    return honest(tensor)
