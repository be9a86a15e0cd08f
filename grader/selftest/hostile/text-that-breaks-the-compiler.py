"""Is an expression of a million signs.

threat: 3
part: all
base: solutions
alone: yes
repeated: collectives.py = "-" * 1000000
zero: 1.6
"""
