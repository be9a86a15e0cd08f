def _huge(*args):
    return 2**1024 - 1


array_bytes = algorithm_bandwidth = bus_bandwidth = usual_bandwidth = _huge
