"""Holds the hidden checks: see “The hidden checks, by problem” in ``grader/README.md``.

Students do not get this package.
"""
