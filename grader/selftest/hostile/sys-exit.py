"""Ends its process politely, with success.

threat: 11
zero: 1.6
says: SystemExit
"""


def shift_right(tensor):
    sys.exit(0)
