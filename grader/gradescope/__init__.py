"""Runs the grader on Gradescope with a course's settings, and rehearses such runs elsewhere."""
