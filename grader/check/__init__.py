"""Provides what a check is written with. It runs in the judge.

Start with ``api``, the interface that checks use.
"""
