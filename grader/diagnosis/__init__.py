"""From what a world reports to the words of a message: root cause, comparison, hints.

Runs in the judge.
"""
