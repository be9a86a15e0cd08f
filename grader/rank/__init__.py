"""This package holds everything that runs beside student code.

Of the grader, it imports only ``wire``. It contains nothing secret.
"""
