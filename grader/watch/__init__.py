"""`make watch`: runs the checks of what a student has just changed, each time a file is saved."""
