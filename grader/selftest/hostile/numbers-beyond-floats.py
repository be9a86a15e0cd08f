"""Returns whole numbers that no float can hold.

threat: 9
part: benchmarking
extends: solutions
control: 2.4
zero: 2.1
says: a whole number of 1024 bits
seconds: 60
"""


def _huge(*args):
    return 2**1024 - 1


array_bytes = algorithm_bandwidth = bus_bandwidth = usual_bandwidth = _huge
