"""Drivers of part 3: lists of parameters, and backward passes with gradient buckets."""

from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from typing import Any

import torch

from grader.rank.drivers.mark import Mark
from grader.wire.seeded_inputs import row_factors


class Once:
    """An iterator that can be used only once, like the generator ``model.parameters()``.

    A second iteration gives nothing, and adds a mark to the trail.
    """

    def __init__(self, items: Iterable, mark: Mark) -> None:
        self.items, self.mark, self.has_ended = iter(items), mark, False

    def __iter__(self) -> Iterator:
        if self.has_ended:
            self.mark("gone through again")
        return self

    def __next__(self) -> Any:
        try:
            return next(self.items)
        except StopIteration:
            self.has_ended = True
            raise


def generator(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Call a function with an iterator in place of the list ``args[0]``, and return the result.

    The iterator can be used only once, like ``model.parameters()``.
    """
    first, *rest = args
    return function(Once(first, mark), *rest, **kwargs)


def views(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Call a function with views of the tensors in the list ``args[0]``.

    Return the result, and the values of the views after the call. If the function gives a view
    other memory, by ``parameter.data = …``, the original tensor does not change.
    """
    first, *rest = args
    seen = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in first]
    value = function(list(seen), *rest, **kwargs)
    return {"value": value, "views": [view.detach() for view in seen]}


def trained(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Call ``train`` with views of the weights in the list ``args[0]``.

    Return the result, and the values of the views after the call, as ``views`` does. Also return
    two facts. The first is whether the optimizer that ``train`` returned updates the weights: its
    parameters must lie in the memory of the weights, in the same order. The second is whether a
    view or a shard requires a gradient after the call.
    """
    weights, shards = args
    seen = [weight.detach() for weight in weights]
    given = [*seen, *shards]
    value, optimizer = function(list(seen), shards, **kwargs), None
    if isinstance(value, (list, tuple)):
        optimizer = next((x for x in value if isinstance(x, torch.optim.Optimizer)), None)
    groups = optimizer.param_groups if optimizer else []
    parameters = [parameter for group in groups for parameter in group["params"]]
    return {
        "value": value,
        "views": [view.detach() for view in seen],
        "over weights": [p.data_ptr() for p in parameters] == [w.data_ptr() for w in weights],
        "argument requires gradient": any(tensor.requires_grad for tensor in given),
    }


class Scaled(torch.autograd.Function):
    """Returns its input. Its backward pass multiplies each row of the gradient by a factor.

    The factors follow from the seed that ``ask`` returns: see ``row_factors``. ``ask`` is called in
    the backward pass, and not before. Rows get different factors. If all rows had one factor, a
    program could compute the gradient of the layer below early, and multiply it later.
    """

    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, ask: Callable[[], int]) -> torch.Tensor:
        ctx.ask = ask
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        factors = torch.from_numpy(row_factors(ctx.ask(), len(grad)))
        return grad * factors.to(grad).unsqueeze(1), None


def backward_passes(buckets_class: type, args: list, kwargs: dict, mark: Mark) -> Any:
    """Run backward passes of a deep MLP, with a student's ``GradientBuckets`` to average gradients.

    Pass p leaves the marks ``backward pass p began`` and ``backward pass p ended``. The first pass
    has the number 0. Each pass leaves the mark ``pass ended`` when its gradients have been read.
    The arguments are in ``kwargs``.

    Args:
        weights: the distinct parameters.
        registered: the list of indices of the parameters that are handed to the buckets. An index
            that appears twice is a tied parameter.
        frozen: the indices of the parameters that require no gradient.
        bucket_bytes: the bucket size to ask for.
        passes: for each backward pass ``(x, layers)``. ``layers`` is a list: for each layer, the
            index of the weight that it uses.
        squared: the indices of parameters, of any shape, whose squares are added to the loss.
        seeds: for each pass a list of functions of the judge, one for each layer. The lists may be
            shorter: then the last layers have no function. ``seeds`` may be left out. The gradient
            that reaches a layer is multiplied by factors that follow from the number that the
            layer's function returns. The rank does not know this number before it calls the
            function.
        as_list: whether the buckets get the parameters as a list. Otherwise they get an iterator
            that can be used only once.

    Returns:
        For each pass a list with the gradient of each weight, or None for a weight without one.
    """
    results: list = []
    for _ in _passes(buckets_class, kwargs, mark, results):
        pass
    return results


def interleaved_passes(buckets_class: type, args: list, kwargs: dict, mark: Mark) -> tuple:
    """Run the backward passes of two models in turn, each with a ``GradientBuckets`` of its own.

    Both models run their backward pass p. Then both wait for it. The arguments of the first model
    are those of ``backward_passes``. Each argument of the second model has the prefix ``other_``.
    Return both results.
    """
    prefix = "other_"
    other = {name[len(prefix) :]: v for name, v in kwargs.items() if name.startswith(prefix)}
    first: list = []
    second: list = []
    of_first = _passes(buckets_class, kwargs, mark, first)
    of_second = _passes(buckets_class, other, mark, second)
    for _ in zip_longest(of_first, of_second):
        pass
    return first, second


def _passes(buckets_class: type, given: dict, mark: Mark, results: list) -> Iterator[None]:
    """Run backward passes, and yield between each pass and the wait for its averages.

    ``given`` holds the arguments of ``backward_passes``. Each pass adds its gradients to
    ``results``.
    """
    from handout import mlp  # the copy in the submission's folder

    weights = [w.requires_grad_(i not in given["frozen"]) for i, w in enumerate(given["weights"])]
    parameters = Once([weights[i] for i in given["registered"]], mark)
    buckets = buckets_class(
        list(parameters) if given.get("as_list") else parameters, given["bucket_bytes"]
    )
    seeds = given.get("seeds", [[] for _ in given["passes"]])
    for p, (x, layers) in enumerate(given["passes"]):
        for weight in weights:
            weight.grad = None
        for layer, i in enumerate(layers):
            x = mlp.forward([weights[i]], x)
            x = Scaled.apply(x, seeds[p][layer]) if layer < len(seeds[p]) else x
        loss = mlp.loss(x) + sum(weights[i].square().sum() for i in given["squared"])
        mark(f"backward pass {p} began")
        loss.backward()
        mark(f"backward pass {p} ended")
        yield
        buckets.wait()
        results.append([None if w.grad is None else w.grad.detach().clone() for w in weights])
        mark("pass ended")
