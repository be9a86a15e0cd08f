"""Has a folder called collectives.py.

threat: 18
folders: collectives.py
control: none
zero: 1.6
says: not a regular file
"""
