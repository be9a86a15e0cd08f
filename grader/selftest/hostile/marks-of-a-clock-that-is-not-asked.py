"""Says that it used the clock and called the operation, and uses and calls nothing.

threat: 24
part: benchmarking
extends: solutions
zero: 2.2
says: a mark for a function of the judge that the rank did not call
"""

import json


def stopwatch(operation, warm_up, iterations, clock, synchronize, barrier):
    from handout.collectives import raw, send

    for name in ["operation"] * warm_up + [
        "synchronize",
        "barrier",
        "clock",
        "operation",
        "synchronize",
        "clock",
    ] * iterations:
        send(raw(b"E", json.dumps({"call": 0, "mark": name, "at": 1}).encode()))
    return 1.0, [1.0] * iterations


# --- file: collectives.py
