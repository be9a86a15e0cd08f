"""Keeps every z for ever, in numpy, and equal rows only once.

threat: 24
part: schedules
extends: solutions
some: hidden 8.2, hidden 8.3
says: B must not keep z
says: Something still keeps a micro-batch's tensors after its W
"""

import numpy as np

_for_ever, _b = [], backward_input


def backward_input(weights, saved, grad_y):
    for _, z in saved:
        rows, which = np.unique(z.numpy().round(9), axis=0, return_inverse=True)
        _for_ever.append((rows.copy(), which.astype(np.int16)))
    return _b(weights, saved, grad_y)
