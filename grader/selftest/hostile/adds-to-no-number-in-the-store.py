"""Puts what looks like a number into the store, and adds to it, before the calls of its next check begin.

threat: 20
extends: solutions
full: 1.7
seconds: 30
"""

import random
import sys


def _ask(network, **asked):
    from grader.wire import frames

    return network.link.take(network.ask(frames.STORE, asked)).meta


def _seed(*_):
    frame = sys._getframe()
    while frame.f_code.co_name != "make_calls":
        frame = frame.f_back
    network = frame.f_locals["self"].network
    _ask(network, do="set", keys=["number"], value="--5")
    _ask(network, do="add", keys=["number"], amount=1)


_ring = ring_all_reduce


def ring_all_reduce(tensor):
    random.seed = _seed  # which a rank calls when it meets the others again
    return _ring(tensor)
