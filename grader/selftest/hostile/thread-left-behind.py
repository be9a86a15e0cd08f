"""Leaves threads that communicate and print after the result.

threat: 13
runs: 1.6
seconds: 30
"""

import threading


def _linger(tensor):
    time.sleep(0.05)
    for _ in range(20):
        print("still here")
        with contextlib.suppress(Exception):
            dist.all_reduce(tensor.clone())


def shift_right(tensor):
    result = honest(tensor)
    threading.Thread(target=_linger, args=(tensor.clone(),), daemon=True).start()
    return result
