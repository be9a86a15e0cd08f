"""Turns what a world reports into the words of a message: root cause, comparison, hints.

It runs in the judge.
"""
