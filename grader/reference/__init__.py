"""Computes in numpy the right results, and the wrong results that well-known mistakes give.

This package runs in the judge.
"""
