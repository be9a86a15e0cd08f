"""Is a zip with a path from the root.

threat: 18
zipped: yes
repeated: /tmp/@TOKEN@ = "x"
control: none
zero: 1.6
note: a path to a place outside of the archive
"""


def shift_right(tensor):
    return honest(tensor)
