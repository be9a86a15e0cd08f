"""Calls an all-reduce on one rank and a broadcast on the others.

threat: 5
zero: 1.6
says: all-reduce
says: broadcast
"""


def shift_right(tensor):
    if dist.get_rank() == 0:
        dist.all_reduce(tensor)
    else:
        dist.broadcast(tensor, 0)
    return tensor
