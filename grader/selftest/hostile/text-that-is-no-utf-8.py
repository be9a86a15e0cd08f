"""Is written in no known encoding.

threat: 18
part: all
base: solutions
binary: collectives.py = 78203d2031200aff0a
zero: 1.6
says: is not UTF-8 text
says: line 2
"""
