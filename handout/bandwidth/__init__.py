"""The benchmark of part 2: ``python -m handout.bandwidth``. Given, not graded.

``__main__`` reads the command line and starts the ranks. ``measurement`` is what every rank runs.
``cases`` holds the collectives, their buffers and the right values. ``report`` prints and writes
the results on rank 0, and ``picture`` draws them. ``answers`` reads the numbers that your functions
return. ``machine`` describes the hardware, ``signals`` handles Ctrl-C, and ``units`` reads and
writes sizes such as 16 MiB.
"""
