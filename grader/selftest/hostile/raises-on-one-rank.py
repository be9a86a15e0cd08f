"""Raises on rank 1 while rank 0 waits.

threat: 4
zero: 1.6
says: rank 1 raised KeyError: 'no such neighbour'
says: in shift_right
says: (rank 0 only waited for rank 1, and is not the cause.)
"""


def shift_right(tensor):
    if dist.get_rank() == 1:
        raise KeyError("no such neighbour")
    return honest(tensor)
