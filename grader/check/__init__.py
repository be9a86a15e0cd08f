"""Provides the tools for writing checks. This code runs in the judge.

Start with ``api``, the interface that checks use.
"""
