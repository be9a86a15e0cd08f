"""Holds the hidden checks, by part: 3.5 (buckets) and 5.4 to 5.6 (schedules) have their own files.

Students do not get this package.
"""
