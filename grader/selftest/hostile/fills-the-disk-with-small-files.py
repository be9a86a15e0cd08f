"""Writes many files, each of which is small.

threat: 12
zero: 1.6
"""


def shift_right(tensor):
    if once():
        for number in range(64):
            Path(f"{TOKEN}-{number}").write_bytes(bytes(4 << 20))
        time.sleep(4)
        achieved("256 MB in small files")
    return honest(tensor)
