"""Drivers of part 4: saved activations, differentiable functions, and pairs of layers."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import torch

from grader.rank.drivers.calls import in_turn, metered
from grader.rank.drivers.mark import Mark
from grader.rank.meter import Meter


def differentiate(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Call a differentiable function. Return its value and the gradients of its arguments.

    The function may be a ``torch.autograd.Function``. The last entry of ``args`` is not an argument
    of the function. This entry is the gradient of the value, or None to differentiate
    ``value.sum()``. Also return this entry.
    """
    *args, upstream = args
    value = getattr(function, "apply", function)(*args)
    mark("backward began")
    if isinstance(value, torch.Tensor) and value.requires_grad:
        value.sum().backward() if upstream is None else value.backward(upstream)
    mark("backward ended")
    return {"value": value, "gradients": [arg.grad for arg in args], "upstream": upstream}


def differentiate_metered(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Do as ``differentiate`` does, under the meter. Also return the meter's ledger."""
    found = metered(
        lambda *given: differentiate(function, list(given), kwargs, mark), args, {}, mark
    )
    return found["value"] | {"ledger": found["ledger"]}


def differentiate_in_turn(function: Callable, args: list, kwargs: dict, mark: Mark) -> list:
    """Make several calls as ``differentiate`` does, and return all results at the end."""
    return [differentiate(function, list(each), kwargs, mark) for each in args]


def apply_and_drop(
    function: type[torch.autograd.Function], args: list, kwargs: dict, mark: Mark
) -> Any:
    """Apply a ``torch.autograd.Function``, and drop the driver's reference to its argument.

    Return a dict with three entries:

    - ``value``: the result of the function;
    - ``argument kept``: whether something other than the result keeps the argument's memory alive;
    - ``beside``: the bytes of all tensors, except the result, that exist after the call.

    Tensors that the function keeps for all calls, such as a buffer, do not count. To leave them
    out, the driver first applies the function once, and drops the result. Then it applies the
    function again, and keeps only the node of the backward pass. So a result that is the argument
    itself does not keep the argument's memory alive.
    """
    (leaf,) = args
    with Meter([leaf]) as meter:
        value = function.apply(leaf.clone())
        del value
        gc.collect()
        before = meter.alive
        term = leaf.clone()
        alive = weakref.ref(term.untyped_storage())
        value = function.apply(term)
        node = value.grad_fn if isinstance(value, torch.Tensor) else value
        del term, value
        gc.collect()
        beside = meter.alive - before
        is_kept = alive() is not None
        del node
        value = function.apply(leaf.clone())
    return {"value": value, "argument kept": is_kept, "beside": beside}


def stack_of_pairs(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Run pairs of layers, one after the other, and return the output and all gradients.

    ``args`` holds the list of pairs, the input of the first pair, and the gradient of the output of
    the last pair. If ``residual`` is True, the input of each pair is added to the output of this
    pair. The gradients are those of the first input and of all weights.
    """
    pairs, x, upstream = args
    value = x
    for column, row in pairs:
        output = function(column, row, value)
        value = (
            output + value
            if kwargs.get("residual") and isinstance(output, torch.Tensor)
            else output
        )
    if isinstance(value, torch.Tensor) and value.requires_grad:
        value.backward(upstream)
    return {
        "value": value,
        "gradients": [x.grad] + [weight.grad for pair in pairs for weight in pair],
    }


def remembered(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Make calls as ``in_turn`` does. Also return how many bytes the saved tensors z keep alive.

    The function returns (y, saved), and ``saved`` holds pairs whose second part is a z. The number
    of bytes is None if the results have another form.
    """
    results = in_turn(function, args, kwargs, mark)
    try:
        memory = [z.untyped_storage() for _, saved in results for _, z in saved]
    # The function returned something else. The check of the values will say so.
    except (TypeError, ValueError, AttributeError):
        return {"results": results, "kept bytes": None}
    return {
        "results": results,
        "kept bytes": sum({own.data_ptr(): own.nbytes() for own in memory}.values()),
    }
