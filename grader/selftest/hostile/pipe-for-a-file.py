"""Is a named pipe that nobody writes to.

threat: 18
fifos: collectives.py
control: none
zero: 1.6
note: not a regular file
"""
