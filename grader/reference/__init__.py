"""Computes the right results in numpy, and the results of well-known mistakes.

This package runs in the judge.
"""
