"""Receives into its input.

threat: 10
some: public 1.6, hidden 1.6
says: modified its input
"""


def shift_right(tensor):
    return tensor.copy_(honest(tensor))
