"""The processes around the ranks of a world: the fork server, and a supervisor for each world.

No student code runs here.
"""
