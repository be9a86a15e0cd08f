"""Proof that the grader works: right, wrong and hostile submissions, and tests of every room.

Not shipped.
"""
