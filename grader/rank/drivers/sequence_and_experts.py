"""Drivers of part 9. They let the hub measure ranks, and look at what ranks save."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

from grader.rank.drivers.calls import described
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


def saves(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Run a forward pass, and return the dict of ``described`` with one more fact.

    The last argument is x, and the result is (y, saved). The fact is whether ``saved`` begins with
    a copy of x, and not with x itself.
    """
    found = described(function, args, kwargs, mark)
    return found | {"x copied": _begins_with_a_copy(found["value"], args[-1])}


def _begins_with_a_copy(result: Any, x: torch.Tensor) -> bool:
    """Return False if the result has another form, because other checks report that."""
    try:
        own = result[1][0]
        is_shared = own.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
        return x.numel() > 0 and torch.equal(own, x) and not is_shared
    except (TypeError, IndexError, KeyError, AttributeError, RuntimeError):
        return False


def beside_experts(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Run a mixture forward and backward ``times`` times, to measure its processor time.

    ``args`` are the gate, the weights of this rank's experts, x, and the gradient of y. Before each
    run, the driver computes as many products for each of these experts, with equal shares of the
    rows of x. The hub measures the rank's processor time before and after each of these two
    computations: see ``report.Call.clocks``. Return y, the gradient of x, and the first rows of the
    gradients of the weights, of the last run.
    """
    from handout import sequence_and_experts  # the submission

    gate, weights, x, grad_y = args
    result = None
    for _ in range(kwargs["times"]):
        mark.before_a_send()
        kept = [_layer_and_back(*pair) for pair in zip(x.chunk(len(weights)), weights)]
        del kept
        mark.before_a_send()
        y, saved = function(gate, weights, x)
        grad_x, _, gradients = sequence_and_experts.mixture_backward(gate, weights, saved, grad_y)
        result = y, grad_x, [gradient[:2] for gradient in gradients]
    mark.before_a_send()
    return result


def _layer_and_back(rows: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    z = rows @ weight
    grad_z = torch.ops.aten.gelu_backward(F.gelu(z), z)
    return grad_z @ weight.T, rows.T @ grad_z


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
