"""Turns what a world reports into the words of a message: root cause, comparison, hints.

This code runs in the judge.
"""
