"""What runs on Gradescope beside the grader: uploads, settings of a course, and a rehearsal of all
that.
"""
