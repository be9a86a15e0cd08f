"""Runs a world from the judge's side: starts ranks, feeds and watches them, reads what they send.

This package runs in the judge.
"""
