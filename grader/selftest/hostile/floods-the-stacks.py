"""Writes to the pipe that is meant for stacks.

threat: 12
runs: 1.6
"""


def shift_right(tensor):
    if once():
        for _ in range(64):
            os.write(4, b"File " * 200_000)
    return honest(tensor)
