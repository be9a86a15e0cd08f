"""Is a zip of five thousand files.

threat: 18
zipped: yes
entries: 5000
control: none
zero: 1.6
note: more than 2000 files
"""


def shift_right(tensor):
    return honest(tensor)
