"""Has a package in the place of a file.

threat: 17
control: none
zero: 1.6
says: has no collectives.py
"""


# --- file: collectives/__init__.py
def shift_right(tensor):
    return honest(tensor)
