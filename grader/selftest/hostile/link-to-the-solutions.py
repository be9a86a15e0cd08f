"""Is a symbolic link to the solutions.

threat: 18
links: collectives.py = @ROOT@/solutions/collectives.py
control: none
zero: 1.6
says: collectives.py is a link
"""
