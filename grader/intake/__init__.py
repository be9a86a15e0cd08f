"""Turns what was handed in into a fresh folder with the assignment's files and nothing else."""
