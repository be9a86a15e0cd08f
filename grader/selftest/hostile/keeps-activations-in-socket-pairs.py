"""Keeps what every micro-batch has saved in pairs of sockets that nobody reads.

threat: 24
part: pipeline_parallel
extends: solutions
some: 5.5
says: does something still keep the values that its forward pass saved
seconds: 60
"""

import socket

_kept, _honest = [], _stage_forward


def _stage_forward(weights, x):  # keeps everything, and half of it in sockets that nobody reads
    y, saved = _honest(weights, x)
    for number, tensor in enumerate(t for pair in saved for t in pair):
        if tensor.nbytes < 100000 or number % 2:
            _kept.append(tensor.numpy().tobytes())
            continue
        data = memoryview(tensor.numpy()).cast("B")
        while data:
            ends = socket.socketpair()
            _kept.append(ends)
            for end in ends:
                end.setblocking(False)
                if data:
                    data = data[end.send(data) :]
    return y, saved
