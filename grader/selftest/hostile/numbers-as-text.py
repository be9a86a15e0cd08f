"""Returns each number as a text that float() can read.

threat: 9
part: benchmarking
extends: solutions
control: none
some: 2.1, 2.2, 2.4
"""


def _as_text(function):
    def wrapped(*args, **kwargs):
        value = function(*args, **kwargs)
        return tuple(map(_text, value)) if isinstance(value, tuple) else _text(value)

    return wrapped


def _text(value):
    return [f" {one!r} " for one in value] if isinstance(value, list) else f" {value!r} "


algorithm_bandwidth = _as_text(algorithm_bandwidth)
fit_latency_bandwidth = _as_text(fit_latency_bandwidth)
stopwatch = _as_text(stopwatch)
array_bytes = _as_text(array_bytes)
bus_bandwidth = _as_text(bus_bandwidth)
usual_bandwidth = _as_text(usual_bandwidth)
predict_seconds = _as_text(predict_seconds)
half_peak_size = _as_text(half_peak_size)
