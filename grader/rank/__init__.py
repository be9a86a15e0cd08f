"""Everything that runs beside student code.

Imports nothing of the grader but ``wire``, and holds nothing secret.
"""
