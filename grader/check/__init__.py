"""What a check is written with.

Start with ``api``: it is all that a check knows of the grader. Runs in the judge.
"""
