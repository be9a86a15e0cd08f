"""Defines how much a rank may report of an exception in student code.

A rank cuts its report to these limits, and the judge refuses a report that exceeds them.
"""

MAX_NAME = 200  # characters of a type, a file or a function
MAX_SOURCE = 200  # characters of a line of the student's code
MAX_TEXT = 4000  # characters of the exception's message
MAX_LINES = 12  # lines of the student's code
