"""Turns a submission into a fresh folder with the assignment's files and nothing else."""
