"""Drivers of part 1. They read or overwrite a tensor while it is communicated, or afterwards."""

from collections.abc import Callable
from typing import Any

import torch

from grader.rank.drivers.mark import Mark


def read_while_computing(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Call a function with a tensor and with a function ``compute``, and return the result.

    ``compute`` only reads the tensor: it adds a mark, and returns a copy of the tensor.
    """

    def compute() -> torch.Tensor:
        mark("compute reads")
        return args[0].detach().clone()

    return function(args[0], compute)


def overwritten_after(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Call a function, overwrite its first argument with the value ``after``; return the result.

    The caller may overwrite this tensor as soon as the function has returned.
    """
    value = kwargs.pop("after")
    result = function(*args, **kwargs)
    args[0].fill_(value)
    return result
