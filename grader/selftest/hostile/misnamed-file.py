"""Calls its file Collectives.py.

threat: 2
part: all
base: solutions
removed: collectives.py
zero: 1.6
says: rename Collectives.py
"""

# --- file: Collectives.py
x = 1
