"""Loops for ever with all signals blocked.

threat: 6
full: hidden 1.6
zero: public 1.6
says: processor time in one call
seconds: 50
"""


def shift_right(tensor):
    if public(tensor) and dist.get_rank() == 0:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        end = time.monotonic() + 60
        while time.monotonic() < end:
            pass
    return honest(tensor)
