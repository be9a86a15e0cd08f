"""Computes the answers of a single device in numpy, and what well-known mistakes give instead.

This package runs in the judge.
"""
