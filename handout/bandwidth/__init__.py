"""The benchmark of part 2: ``python -m handout.bandwidth``. Given, not graded.

``__main__`` is the command line, and ``measurement`` is what every rank runs. ``cases`` holds the
collectives, their buffers and the right values. ``report`` is what rank 0 prints and writes, and
``picture`` draws. ``machine`` describes the hardware, ``signals`` handles Ctrl-C, and ``units``
reads and writes sizes such as 16 MiB.
"""
