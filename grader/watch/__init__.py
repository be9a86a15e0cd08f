"""`make watch`: runs the checks of changed functions each time that a student saves a file."""
