"""This package holds everything that runs beside student code.

It imports nothing of the grader but ``wire``, and contains nothing secret.
"""
