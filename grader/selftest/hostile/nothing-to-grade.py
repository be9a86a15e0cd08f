"""Hands in a README alone.

threat: 2
control: none
zero: 1.6
note: holds none of the assignment's files
"""

# --- text: README.md
# done!
