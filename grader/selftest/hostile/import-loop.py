"""Imports a file that imports it again.

threat: 3
alone: yes
control: none
zero: 1.6
says: cannot be imported: ImportError
says: circular import
"""

from handout.data_parallel import shard_batch


def shift_right(tensor):
    return shard_batch(tensor)


# --- file: data_parallel.py
from handout.collectives import shift_right


def shard_batch(x):
    return shift_right(x)
