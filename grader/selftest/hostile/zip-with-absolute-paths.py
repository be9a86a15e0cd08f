"""Is a zip with a path from the root.

threat: 18
zipped: yes
repeated: /tmp/@TOKEN@ = "x"
control: none
zero: 1.6
note: leaves it
"""


def shift_right(tensor):
    return honest(tensor)
