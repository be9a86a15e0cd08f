"""Turns records, one for each check, into reports: on the terminal, as results.json, as a page.

The package also draws timelines.
"""
