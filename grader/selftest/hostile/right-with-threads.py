"""Keeps twenty threads, as a pool of a library would.

threat: 8
full: 1.6
"""

from concurrent.futures import ThreadPoolExecutor

POOL = ThreadPoolExecutor(20)


def shift_right(tensor):
    list(POOL.map(time.sleep, [0.001] * 40))
    return honest(tensor)
