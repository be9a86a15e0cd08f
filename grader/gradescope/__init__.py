"""Runs the grader on Gradescope, for uploads, with a course's settings; and rehearses all that."""
