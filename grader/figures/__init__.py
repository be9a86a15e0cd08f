"""Draws the pictures of handout/ASSIGNMENT.md as SVG: ``make figures``.

Students do not get this folder, because one of the pictures is a schedule.
"""
