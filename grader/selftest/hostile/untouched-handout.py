"""Is the handout as it was given out.

threat: 1
part: all
base: handout
control: none
zero: 1.6, 2.1, 3.1, 4.1, 5.1
status: not implemented
"""
