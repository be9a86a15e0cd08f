"""Has a handout/ that is a link to the solutions.

threat: 18
links: handout = @ROOT@/solutions
control: none
zero: 1.6
"""
