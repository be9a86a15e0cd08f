"""Drivers of part 6: large shards, steps of ZeRO, and layers that the judge follows."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from grader.rank.drivers.calls import metered, plain
from grader.rank.drivers.mark import Mark
from grader.rank.drivers.memory import RESTING, free_at_once, meet_at_rest
from grader.rank.renewal import Renewal
from grader.wire.seeded_inputs import draw


def drawn_shards(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Call a step of a sharded model with large shards. Return its loss and fingerprints.

    There is one fingerprint for each gradient that the step returned, with the gradient's shape.
    There is also one for each shard that the step got, computed after the step. The shard of layer
    l has the entries (1 + u/2) / D. D is the width of x. For each entry, u is a number that
    ``draw`` returns for the rank's ``seed`` and index l. The ranks enter a barrier before the step.
    There the hub measures how much memory the ranks use without the step. If the arguments contain
    functions of the judge, the judge observes each layer with them: see ``followed_layers``.
    During the backward pass, the shards of some layers have the values in ``renewed``.
    """
    free_at_once()
    x, *followed = args
    seed, entries = kwargs["seed"], kwargs["entries"]
    shards = [
        torch.from_numpy(draw(seed, layer, entries)).div_(2).add_(1).div_(x.shape[1])
        for layer in range(kwargs["layers"])
    ]
    dist.barrier()
    step = followed_layers if followed else plain
    with Renewal(shards, kwargs["renewed"], dist.get_world_size()):
        loss, gradients = step(function, [shards, x, *followed], {}, mark)
    gradients = list(gradients)
    return {
        "value": (loss, [_fingerprint(gradient) for gradient in gradients]),
        "shapes": [list(gradient.shape) for gradient in gradients],
        "shards": [_fingerprint(shard) for shard in shards],
    }


def renewed_layers(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Call a step of a sharded model under the meter, as ``metered`` does.

    During the backward pass, the shards of some layers have other values: ``renewed`` holds a pair
    [layer, values] for each of them. Only the hub changes shards: see ``renewal``. If the arguments
    contain functions of the judge, the judge observes each layer: see ``followed_layers``.
    """
    shards, _, *followed = args
    with Renewal(shards, kwargs["renewed"], dist.get_world_size(), restores=True):
        if followed:
            return followed_layers(function, args, {"metered": True}, mark)
        return metered(function, args, {}, mark)


def zero_steps(zero_class: type, args: list, kwargs: dict, mark: Mark) -> Any:
    """Make steps with a student's ``ZeroAdamW``, one for each list of gradients in ``args[1]``.

    ``args[2]`` holds a function of the judge for each step except the first. The function returns
    the learning rate of its step. No rank knows this rate before the call, and it differs from rank
    to rank. Return the weights before the first step and after each step, the optimizer, and the
    gradients as they are at the end. Also return the contents, at the end, of the memory that first
    held the weights. If a step gives a weight other memory, by ``weight.data = …``, this first
    memory does not change any more. The mark ``constructed`` says that the object has been made,
    and that no step has begun.
    """
    weights, steps, rates = args
    first_memory = [weight.detach() for weight in weights]
    zero = zero_class(weights, **kwargs)
    mark("constructed")
    before = [weight.detach().clone() for weight in weights]
    after = []
    for number, gradients in enumerate(steps):
        if number:
            _set_rate(zero.optimizer, rates[number - 1]())
        zero.step(gradients)
        after.append([weight.detach().clone() for weight in weights])
    kept = {"before": before, "gradients": steps, "first memory": first_memory}
    return {"weights": after, "optimizer": zero.optimizer, **kept}


def zero_in_turn(zero_class: type, args: list, kwargs: dict, mark: Mark) -> Any:
    """Make several objects of a student's ``ZeroAdamW``. Then make a step with each object in turn.

    ``args`` holds ``[weights, steps, rates, settings, moments]`` for each object. The first three
    are the arguments of ``zero_steps``. Before each step except the first, all settings of the
    object's optimizer change: ``settings`` holds a list ``[weight decay, beta 1, beta 2, eps]`` for
    each of these steps. ``moments`` holds the index of one of these steps and two tensors. Before
    this step, the tensors replace the moments of this rank's shard. Return each object's weights
    after each step, ``[object][step][tensor]``.
    """
    objects = [zero_class(weights, **kwargs) for weights, *_ in args]
    after: list[list] = [[] for _ in args]
    for number in range(len(args[0][1])):
        for zero, own, (weights, steps, rates, settings, moments) in zip(objects, after, args):
            if number:
                _set_rate(zero.optimizer, rates[number - 1]())
                _set_others(zero.optimizer, *settings[number - 1])
            if number == moments[0]:
                _set_moments(zero.optimizer, *moments[1:])
            zero.step(steps[number])
            own.append([weight.detach().clone() for weight in weights])
    return after


def _set_others(
    optimizer: torch.optim.Optimizer, decay: float, first: float, second: float, eps: float
) -> None:
    """Set all settings except the learning rate as schedulers do."""
    for group in optimizer.param_groups:
        group["weight_decay"], group["betas"], group["eps"] = decay, (first, second), eps


def _set_moments(
    optimizer: torch.optim.Optimizer, first: torch.Tensor, second: torch.Tensor
) -> None:
    """Write new values into the optimizer's moments. Moments of another size stay as they are."""
    for state in optimizer.state.values():
        for name, values in (("exp_avg", first), ("exp_avg_sq", second)):
            moment = state.get(name)
            if isinstance(moment, torch.Tensor) and moment.shape == values.shape:
                moment.data.copy_(values)


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate as torch's schedulers do."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def zero_rests(zero_class: type, args: list, kwargs: dict, mark: Mark) -> Any:
    """Make steps of a large ``ZeroAdamW``. In a second call, let the hub measure the memory.

    The first call gets the learning rates as ``zero_steps`` does. ``seed`` is the seed of the
    weights, and ``own_seed`` the seed of this rank's gradients. There are ``tensors`` weights of
    ``entries`` numbers each. Weight i has the numbers that ``draw`` returns for index i. Its
    gradient in step s (0, 1, …) has the numbers for index s · tensors + i. Before the last step,
    the moments of this rank's shard get the numbers for the next two indices of ``own_seed``.
    Return, for each weight at the end, the sum of its entries and the sum of their squares. The
    second call has no arguments, and returns None. The ranks enter a barrier at the beginning of
    each call, so the hub measures their memory twice. In the first call there are no weights yet.
    In the second call the steps are done, and the weights and the optimizer are in memory.
    """
    meet_at_rest()
    if not args:
        RESTING.clear()
        return None
    (rates,), own_seed = args, kwargs["own_seed"]
    count, entries = kwargs["tensors"], kwargs["entries"]
    weights = [torch.from_numpy(draw(kwargs["seed"], index, entries)) for index in range(count)]
    zero = zero_class(weights, lr=kwargs["lr"])
    for number in range(len(rates) + 1):
        if number:
            _set_rate(zero.optimizer, rates[number - 1]())
        if number == len(rates):
            size, following = count * entries // dist.get_world_size(), (number + 1) * count
            numbers = (draw(own_seed, following + i, size) for i in range(2))
            _set_moments(zero.optimizer, *map(torch.from_numpy, numbers))
        indices = range(number * count, (number + 1) * count)
        zero.step([torch.from_numpy(draw(own_seed, index, entries)) for index in indices])
    RESTING.append((zero, weights))
    return [(weight.sum(), weight.square().sum()) for weight in weights]


def followed_layers(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Call a step of a sharded model whose layers the judge follows, and return its result.

    The last two arguments are lists of the judge's functions: one function for each layer's forward
    pass, and one for each layer's backward pass. Each function returns a number that the rank does
    not know before the call. A layer's forward pass multiplies the layer's output by the number for
    this forward pass. Its backward pass multiplies both gradients by the number for this backward
    pass. The effect is the same as if the gradient of the output were multiplied. When a pass
    begins, a mark records the fingerprints of the pass's arguments. When the pass ends, a mark
    records the fingerprints of its results, and then the rank gets the number. If ``metered`` is
    True, also return the meter's ledger.
    """
    from handout import mlp  # the copy in the submission's staged folder

    *given, forward, backward = args
    layers = len(forward)
    ahead, back = iter(range(layers)), iter(reversed(range(layers)))

    def layer_forward(x: torch.Tensor, weight: torch.Tensor) -> tuple:
        layer = _next_layer(ahead, "layer_forward")
        _tell_fingerprints(mark, f"forward of layer {layer} got", x, weight)
        forward[layer].begin()
        output, z = mlp.layer_forward(x, weight)
        _tell_fingerprints(mark, f"forward of layer {layer} gave", output)
        return forward[layer].end() * output, z

    def layer_backward(
        x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, grad_y: torch.Tensor
    ) -> tuple:
        layer = _next_layer(back, "layer_backward")
        _tell_fingerprints(mark, f"backward of layer {layer} got", x, weight, grad_y)
        backward[layer].begin()
        both = mlp.layer_backward(x, z, weight, grad_y)
        _tell_fingerprints(mark, f"backward of layer {layer} gave", *both)
        factor = backward[layer].end()
        return factor * both[0], both[1].mul_(factor)  # in place: a weight's gradient is large

    followed = [*given, layer_forward, layer_backward]
    return metered(function, followed, {}, mark) if kwargs.get("metered") else function(*followed)


def _next_layer(layers: Iterator[int], name: str) -> int:
    layer = next(layers, None)
    if layer is None:
        raise RuntimeError(f"{name} was called more often than there are layers")
    return layer


def _tell_fingerprints(mark: Mark, name: str, *tensors: torch.Tensor) -> None:
    """Add a mark with one number for each tensor, computed from all its entries and their order."""
    numbers = [_fingerprint(tensor) for tensor in tensors]
    mark(" ".join([name, *(f"{number:.9e}" for number in numbers)]))


def _fingerprint(tensor: torch.Tensor) -> float:
    """Return one number, computed from all entries of a tensor and their order."""
    entries = tensor.detach().reshape(-1).to(torch.float64)
    places = torch.arange(len(entries), dtype=torch.float64, device=entries.device)
    # irregular factors from 1 to 2, made in place because the large models' memory is measured
    return float(entries.dot(places.mul_(0.6180339887498949).frac_().add_(1)))
