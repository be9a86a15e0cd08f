"""The grader is graded: wrong submissions must fail as intended, right ones pass.

``python -m grader.selftest.mutation``.
"""
