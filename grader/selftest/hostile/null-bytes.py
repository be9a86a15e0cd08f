"""Holds a null byte.

threat: 18
part: all
base: solutions
binary: collectives.py = 780a00
zero: 1.6
says: null byte
"""
