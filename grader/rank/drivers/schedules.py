"""Drivers of part 8: steps with chunks, and the two halves of a backward pass."""

from collections.abc import Callable
from typing import Any

import torch

from grader.rank.drivers.mark import Mark
from grader.rank.drivers.memory import free_at_once
from grader.wire.drawn import draw


def chunked(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Run steps of a pipeline, and return ``(loss, gradients)`` of the last step.

    ``schedule_runner`` of the handout runs the steps. ``args`` are the arguments of its function
    ``run_schedules``: the schedules of all stages, the weights of each chunk of this stage, x, the
    batch size and the number of micro-batches. If the schedules split backward passes into two
    halves, B and W, the student's functions of problem 8.2 compute these halves. ``changes`` has a
    function of the judge for each W of this stage, in order: see ``_changed``. ``times`` is the
    number of steps. ``function`` is not called. It only names what is judged.
    """
    from handout import schedule_runner  # the copy beside the submission
    from handout.timeline import Timeline

    halves: dict[str, Any] = {}
    if any(kind == "W" for own in args[0] for kind, *_ in own):
        from handout import schedules

        halves["backward_input"] = schedules.backward_input
        halves["backward_weights"] = _changed(schedules.backward_weights, args[-1], kwargs)
    free_at_once()
    stages, weights, x, batch_size, many = args
    actions = [[tuple(action) for action in own] for own in stages]
    for _ in range(kwargs.get("times", 1)):
        step = schedule_runner.run_schedules(
            actions, weights, x, batch_size, many, Timeline(), **halves
        )
    return step


def halves(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Compute both halves of a backward pass, and return the gradients of the weights.

    ``function`` computes the first half, B. The student's function of problem 8.2 computes the
    second half, W. ``changes`` has one function of the judge: see ``_changed``.
    """
    from handout import schedules

    _, kept = function(*args)
    return _changed(schedules.backward_weights, 1, kwargs)(kept)


def _changed(backward_weights: Callable, many: int, kwargs: dict) -> Callable:
    """Return a function that changes each grad_z, and then calls ``backward_weights`` (W).

    The change is drawn from a seed that nobody knows before W begins, and is added in place. So
    only a product of x and the new grad_z gives the gradient that the judge expects. A product that
    B has computed in advance gives another gradient. The change is divided by the number of entries
    of the batch, which has ``many`` micro-batches. So the change is about as large as a gradient.
    """
    served = iter(kwargs["changes"])

    def changed(kept: Any) -> Any:
        seed = next(served)()
        # Inference mode permits changes of all tensors, also of those that were made in this mode.
        with torch.inference_mode():
            for layer, (_, grad_z) in enumerate(kept):
                entries = grad_z.numel()
                change = (draw(seed, layer, entries) - 0.5) / (many * entries)
                grad_z += torch.from_numpy(change).view(grad_z.shape).to(grad_z)
        return backward_weights(kept)

    return changed
