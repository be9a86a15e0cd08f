"""The benchmark of part 2: ``python -m handout.bandwidth``. Given, not graded.

``__main__`` is the command line; ``measurement`` is what every rank runs; ``cases`` has the collectives, their buffers and
the values that are right; ``report`` is what rank 0 prints and writes; ``machine`` describes the hardware; ``picture`` draws;
``signals`` handles Ctrl-C; ``units`` reads and writes sizes such as 16 MiB.
"""
