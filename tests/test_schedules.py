"""Part 8 · Better schedules: the public checks.

Run one problem with ``make test PART=schedules K=interleaved``.
"""
