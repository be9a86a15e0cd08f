"""Raises while it is imported.

threat: 3
part: all
base: solutions
alone: yes
zero: 1.6
says: cannot be imported: KeyError: 'rank'
says: collectives.py:4
"""

import torch

SETTINGS = {}
print(SETTINGS["rank"])
