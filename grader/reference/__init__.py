"""The answers of a single device, in numpy, and what well-known mistakes give instead.

Runs in the judge.
"""
