"""Drivers of part 9. They let the hub measure the memory that ranks keep."""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from grader.rank.drivers.mark import Mark
from grader.rank.drivers.memory import RESTING, meet_at_rest


def there_and_back(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Call ring attention, then its backward pass; return the results of both in one tuple.

    ``args`` are q, k, v, the gradient of the output, and whether attention is causal. The ranks
    enter a barrier before, between and after the two calls. The hub measures their memory at each
    barrier.
    """
    from handout import sequence_and_experts  # the submission

    q, k, v, grad, causal = args
    meet_at_rest()
    output, logsumexp = function(q, k, v, causal)
    mark("backward began")
    dist.barrier()
    gradients = sequence_and_experts.ring_attention_backward(
        q, k, v, output, logsumexp, grad, causal
    )
    dist.barrier()
    return output, logsumexp, *gradients


def rests(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Make a call, and keep and return its result; without arguments, let the hub measure memory.

    If there are no arguments, do not call the function. Instead the ranks enter a barrier, at which
    the hub measures the memory of the kept result and of everything else that the function has
    kept. Then drop the result, and return None.
    """
    if args:
        RESTING.append(function(*args, **kwargs))
        return RESTING[-1]
    meet_at_rest()
    RESTING.clear()
    return None
