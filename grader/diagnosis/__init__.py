"""Turns the report of a world into a message: root cause, comparison, hints.

This code runs in the judge.
"""
