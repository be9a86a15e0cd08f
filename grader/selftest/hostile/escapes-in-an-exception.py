r"""Raises an exception that clears the screen, and calls it by such a name.

threat: 26
zero: 1.6
never: "\u2028"
never: "\u0085"
never: "\u0000"
never: "E" * 1000
"""

Evil = type("\x1b[2J\x1b]0;title\x07\u202e" + "E" * 100_000, (Exception,), {})


def shift_right(tensor):
    raise Evil("\x1b[2J\x1b[32m100 of 100\r\x08\x00\u202egnorw\u2028\x85")
