"""Is right.

threat: 7
base: solutions
full: 1.2, 1.6, 1.7
"""
