"""Raises an exception that is a page with a script.

threat: 26
zero: 1.6
says: raised ValueError
"""


def shift_right(tensor):
    raise ValueError("<script>alert(1)</script><img src=x onerror=alert(2)>" + "</pre></td>" * 20)
