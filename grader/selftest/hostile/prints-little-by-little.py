"""Prints lines without end to standard error.

threat: 12
zero: 1.6
says: printed more than 1 MiB
"""


def shift_right(tensor):
    end = time.monotonic() + 8
    while dist.get_world_size() > 1 and time.monotonic() < end:
        print("spam " * 50, file=sys.stderr)
    return honest(tensor)
