"""Communicates twice where once is enough, and leaves the first time out where it tells that itself.

threat: 27
extends: solutions
some: hidden 1.1
runs: 1.1
says: communicated 2 times, but one all_reduce is enough
seconds: 60
"""

import sys

_right = all_reduce


def all_reduce(tensor, op):
    """Right, by two collectives, of which the record of a rank that tells it itself shows one."""
    if op not in ("max", "average") or not tensor.is_floating_point():
        return _right(tensor, op)
    frame = sys._getframe()
    while frame.f_code.co_name != "make_calls":
        frame = frame.f_back
    link, hub = frame.f_locals["self"].link, frame.f_locals["self"].network
    if not hub:
        link.send = lambda *told: None
    dist.all_reduce(torch.zeros(1))
    if not hub:
        del link.send
    return _right(tensor, op)
