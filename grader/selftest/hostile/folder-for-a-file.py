"""Has a folder called collectives.py.

threat: 18
folders: collectives.py
control: none
zero: 1.6
note: not a regular file
"""
