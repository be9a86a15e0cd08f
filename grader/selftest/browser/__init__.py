"""Tests the pages that the grader writes in a real browser: `make browser-test`.

``pages`` lists the pages. ``checks`` holds what is asked of each page; each check returns its
complaints. ``faults`` holds pages with one mistake each, on which a check must complain. ``browser``
starts a headless Chromium and talks to it.
"""
