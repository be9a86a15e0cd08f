"""Starts five hundred threads.

threat: 12
zero: 1.6
"""

import threading


def shift_right(tensor):
    if once():
        for _ in range(500):
            threading.Thread(target=time.sleep, args=(10,), daemon=True).start()
        time.sleep(0.5)
        achieved("five hundred threads")
    return honest(tensor)
