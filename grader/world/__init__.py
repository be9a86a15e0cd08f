"""Starts the ranks of a world, sends them inputs, watches them, and reads what they send.

This package runs in the judge.
"""
