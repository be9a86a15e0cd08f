"""Lockstep: the files that a student edits, beside the modules that are given."""
