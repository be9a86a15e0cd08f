"""Is no Python.

threat: 3
part: all
base: solutions
alone: yes
zero: 1.6
says: cannot be imported: SyntaxError
says: collectives.py:3
"""

# --- text: collectives.py
# import torch
#
# def shift_right(tensor:
#     return tensor
