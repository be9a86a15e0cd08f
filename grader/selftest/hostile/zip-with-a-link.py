"""Is a zip with a symbolic link to the solutions.

threat: 18
zipped: yes
links: collectives.py = @ROOT@/solutions/collectives.py
control: none
zero: 1.6
note: holds a link
"""
