"""Nests lists deeper than the compiler's stack.

threat: 3
part: all
base: solutions
alone: yes
repeated: collectives.py = "[" * 90000
zero: 1.6
"""
