"""Holds the hidden checks, with one file for each part.

Problem 3.5 (buckets) and problems 5.4 to 5.6 (schedules) have files of their own. Students do not
get this package.
"""
