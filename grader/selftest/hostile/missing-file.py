"""Lacks collectives.py.

threat: 2
part: all
base: solutions
removed: collectives.py
zero: 1.6
says: The submission has no collectives.py
"""
