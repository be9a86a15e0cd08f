"""Turns records, one for each check, into reports: on the terminal, as results.json, as a page.

Also draws timelines.
"""
