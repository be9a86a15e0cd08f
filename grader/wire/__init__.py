"""What the judge, the supervisor and the ranks share: frames, events, limits of the machine.

Imports nothing else of the grader.
"""
