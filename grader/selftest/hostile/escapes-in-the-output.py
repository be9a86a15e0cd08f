r"""Prints escapes, half characters and lines without end.

threat: 26
zero: 1.6
says: Printed:
never: "\u0000"
never: "x" * 1000
"""


def shift_right(tensor):
    os.write(1, b"\x1b[2J\x1b[31m\xff\xfe\x00\r" + "\u202e".encode() + b"x" * 100_000)
    return tensor
