"""The end of a world that the judge holds: start ranks, feed and watch them, read what they send.

Runs in the judge.
"""
