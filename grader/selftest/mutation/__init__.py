"""Test the grader itself: wrong submissions must fail as intended, and right ones must pass.

Run it with ``python -m grader.selftest.mutation``.
"""
