"""This package holds everything that runs beside student code.

From the rest of the grader, this package imports only ``wire``. It contains nothing secret.
"""
