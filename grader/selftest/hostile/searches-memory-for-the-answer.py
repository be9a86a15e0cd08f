"""Reads all of its memory for the numbers that it should return.

threat: 21
full: 1.6
"""

import numpy as np


def _search(first):
    wanted = [first * step for step in (1, 2, 3, 4)]
    with open("/proc/self/mem", "rb", buffering=0) as memory, open("/proc/self/maps") as maps:
        for line in maps.readlines():
            where, rights, _, _, inode, *_ = line.split()
            start, end = (int(number, 16) for number in where.split("-"))
            if rights != "rw-p" or end - start > 256 << 20:
                continue
            memory.seek(start)
            numbers = np.frombuffer(memory.read(end - start), np.uint8)
            numbers = numbers[: len(numbers) // 4 * 4].view(np.float32)
            at = np.flatnonzero(numbers[:-3] == wanted[0])
            if any(all(numbers[i + k] == wanted[k] for k in range(4)) for i in at):
                return line
    return [][0]


def shift_right(tensor):
    if public(tensor):
        denied("the other rank's numbers", lambda: _search(1.0 if tensor[0] > 5 else 10.0))
    return honest(tensor)
