"""Runs the processes around the ranks of a world: the fork server, and a supervisor per world.

No student code runs here.
"""
