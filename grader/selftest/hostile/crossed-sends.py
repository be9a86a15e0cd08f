"""Sends first on every rank.

threat: 5
zero: public 1.6
says: Deadlock: no rank can go on.
says: rank 0 waits at collectives.py
says: every rank sends first
"""


def shift_right(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    received = torch.empty_like(tensor)
    dist.send(tensor.contiguous(), (rank + 1) % n)
    dist.recv(received, (rank - 1) % n)
    return received
