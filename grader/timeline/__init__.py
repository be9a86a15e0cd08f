"""Draws a run of a student's own code, ranks over time: ``make timeline``. Runs in the judge."""
