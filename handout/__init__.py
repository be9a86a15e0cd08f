"""Lockstep: the files that students edit, and the modules that are given."""
