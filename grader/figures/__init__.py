"""The pictures of handout/ASSIGNMENT.md, drawn as SVG: ``make figures``.

Not for students: one of them is a schedule.
"""
