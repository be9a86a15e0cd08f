"""Packs the zip for students and the zip for Gradescope."""
