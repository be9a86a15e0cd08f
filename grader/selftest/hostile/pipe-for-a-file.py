"""Is a named pipe that nobody writes to.

threat: 18
fifos: collectives.py
control: none
zero: 1.6
says: not a regular file
"""
