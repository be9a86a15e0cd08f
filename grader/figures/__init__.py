"""Draws the pictures of handout/ASSIGNMENT.md as SVG: ``make figures``.

Students do not get this folder, because one picture contains a schedule that students have to
write.
"""
