"""Drivers of part 9, which weigh what ranks keep."""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist

from grader.rank.drivers.mark import Mark
from grader.rank.drivers.memory import RESTING, meet_at_rest


def there_and_back(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Call attention, and its backward pass with what it returned; return all results in a tuple.

    ``args`` are q, k, v, the gradient of the output, and whether attention is causal. The ranks
    meet before, between and after the two, so that the hub sees what memory they have then.
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
    """Make a call and keep its result. Without arguments, let the hub weigh what was kept.

    Without arguments, no call is made. The ranks meet, so that the hub sees what memory the result
    takes, and all else that the function has kept. Afterwards the result is dropped.
    """
    if args:
        RESTING.append(function(*args, **kwargs))
        return RESTING[-1]
    meet_at_rest()
    RESTING.clear()
    return None
