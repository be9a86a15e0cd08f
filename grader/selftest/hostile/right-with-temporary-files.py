"""Is right, and makes and removes temporary files all the time.

threat: 7
full: 1.6
seconds: 60
"""


def shift_right(tensor):
    if public(tensor):
        until, number = time.monotonic() + 2, 0
        while time.monotonic() < until:
            os.close(os.open(f"file-{number}", os.O_CREAT))
            if number >= 3000:
                os.unlink(f"file-{number - 3000}")
            number += 1
    return honest(tensor)
