"""Waits for the next layer before it computes this one, by is_completed() and sleep.

threat: 24
part: sharded_data_parallel
control: 6.1
extends: solutions
some: 6.4
unless any: forge its report of a call: when parts of it began, when it waited, and which operations it did not wait for
seconds: 90
"""

import time


def _patiently(work):
    for _ in range(20):
        if work.is_completed():
            return
        time.sleep(0.015)


def _gathered_ahead(shards, width):
    under_way = []
    for shard in shards:
        under_way.append(_start_gather(shard))
        if len(under_way) > 1:
            _patiently(under_way[1][1])
            yield _arrived(*under_way.pop(0), width)
    while under_way:
        yield _arrived(*under_way.pop(0), width)
