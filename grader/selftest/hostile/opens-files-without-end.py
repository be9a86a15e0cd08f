"""Opens two thousand files at a time.

threat: 12
runs: 1.6
"""


def shift_right(tensor):
    if once():
        denied(
            "two thousand open files",
            lambda: [os.open("/dev/null", os.O_RDONLY) for _ in range(2000)],
        )
    return honest(tensor)
