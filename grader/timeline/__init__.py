"""Draws what each rank does over time in a student's code: ``make timeline``. Runs in the judge."""
