"""The network of a world: matches the operations of its ranks, computes their results, and tells
the judge. No student code runs here.
"""
