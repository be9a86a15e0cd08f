"""This package is the hub, the network of a world.

The hub matches the operations of the ranks, computes their results, and reports to the judge. No
student code runs here.
"""
