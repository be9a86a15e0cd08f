"""Drivers of part 8: steps with chunks, and the two halves of a backward pass."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import torch

from grader.rank.drivers.mark import Mark
from grader.rank.drivers.memory import free_at_once, meet_at_rest
from grader.wire.seeded_inputs import draw


def chunked(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Run steps of a pipeline, and return ``(loss, gradients)`` of the last step.

    ``schedule_runner`` of the handout runs the steps. ``args`` are the arguments of its function
    ``run_schedules``: the schedules of all stages, the weights of each chunk of this stage, x, the
    batch size and the number of micro-batches. If the schedules split backward passes into two
    halves, B and W, the student's functions of problem 8.2 compute these halves. ``changes`` has a
    function of the judge for each W of this stage, in order: see ``_changed``. ``times`` is the
    number of steps. ``function`` is not called. It only names what is judged. If backward passes
    are split, marks say how many tensors were still in memory although nobody needed them any more:
    see ``_Watch``.
    """
    from handout import schedule_runner  # the copy in the submission's staged folder
    from handout.timeline import Timeline

    stages, weights, x, batch_size, many = args
    halves: dict[str, Any] = {}
    of_z, of_x = _Watch(), _Watch()
    if any(kind == "W" for own in stages for kind, *_ in own):
        from handout import schedules

        def backward_input(weights: list, saved: list, grad_y: torch.Tensor) -> Any:
            of_z.look()
            of_z.add([z for _, z in saved])
            of_x.add([a for a, _ in saved if x is None or not _share_memory(a, x)])
            return schedules.backward_input(weights, saved, grad_y)

        halves["backward_input"] = backward_input
        halves["backward_weights"] = _changed(schedules.backward_weights, many, kwargs, of_z.look)
    free_at_once()
    actions = [[tuple(action) for action in own] for own in stages]
    for _ in range(kwargs.get("times", 1)):
        step = schedule_runner.run_schedules(
            actions, weights, x, batch_size, many, Timeline(), **halves
        )
    if halves:
        for name, watch in (("z left", of_z), ("x left", of_x)):
            watch.look()
            mark(f"{name} {watch.most}")
    return step


class _Watch:
    """Counts the tensors that are still in memory although nobody needs them any more.

    ``most`` is the largest number that ``look`` has found.
    """

    def __init__(self) -> None:
        self.watched: list[weakref.ref[torch.UntypedStorage]] = []
        self.most = 0

    def add(self, tensors: list[torch.Tensor]) -> None:
        self.watched += [weakref.ref(tensor.untyped_storage()) for tensor in tensors]

    def look(self) -> None:
        """Count what is left. The caller must have dropped all the tensors that were added."""
        self._forget_freed()
        if self.watched:
            gc.collect()  # a program may leave cycles of references
            self._forget_freed()
        self.most = max(self.most, len(self.watched))

    def _forget_freed(self) -> None:
        self.watched = [storage for storage in self.watched if storage() is not None]


def _share_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


def _has_copies(result: Any, saved: list) -> bool:
    """Return whether the result of B holds a copy of some x, and not x itself.

    The docstring of ``backward_input`` says which form the result must have. Return False if it has
    another form, because other checks report that.
    """
    try:
        _, kept = result
        pairs = [(a, x) for (a, _), (x, _) in zip(kept, saved)]
        return any(torch.equal(a, x) and not _share_memory(a, x) for a, x in pairs)
    except (TypeError, ValueError, AttributeError, RuntimeError):
        return False


def freed(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Compute B, the first half of the backward pass, for ``times`` micro-batches.

    As a pipeline does, keep the results, and drop the saved tensors z. One mark says how many z are
    still in memory. Another mark says how many results hold a copy of some x. Then the ranks enter
    a barrier, at which the hub measures how much memory they use. All micro-batches have the same
    x, so only the results take memory. Return the number of results.
    """
    weights, saved, grad_y = args
    watch, results, copies = _Watch(), [], 0
    for _ in range(kwargs["times"]):
        own = [(x, z.clone()) for x, z in saved]
        watch.add([z for _, z in own])
        results.append(function(weights, own, grad_y))
        del own
        copies += _has_copies(results[-1], saved)
    watch.look()
    mark(f"z left {watch.most}")
    mark(f"x copied {copies}")
    meet_at_rest()
    return len(results)


def beside_products(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Compute B, the first half of the backward pass, ``times`` times, to measure its cost.

    Before each B, the driver computes the same gradients by itself, and nothing else. The hub
    measures the rank's processor time before and after each of these two computations: see
    ``report.Call.clocks``.
    """
    weights, saved, grad_y = args
    of_z, transposed = [z for _, z in saved], [weight.T for weight in weights]
    for _ in range(kwargs["times"]):
        mark.before_a_send()
        grad_x = grad_y
        for z, weight in zip(of_z[::-1], transposed[::-1]):
            grad_x = torch.ops.aten.gelu_backward(grad_x, z) @ weight
        mark.before_a_send()
        function(weights, saved, grad_y)
    mark.before_a_send()
    return None


def halves(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Compute both halves of a backward pass, and return the gradients of the weights.

    ``function`` computes the first half, B. The student's function of problem 8.2 computes the
    second half, W. ``changes`` has one function of the judge: see ``_changed``.
    """
    from handout import schedules

    _, kept = function(*args)
    return _changed(schedules.backward_weights, 1, kwargs)(kept)


def _changed(
    backward_weights: Callable, many: int, kwargs: dict, first: Callable[[], None] = lambda: None
) -> Callable:
    """Return a function that changes each grad_z, and then calls ``backward_weights`` (W).

    The change is drawn from a seed that the rank does not know before W begins, and is added in
    place. So only a product of x and the new grad_z gives the gradient that the judge expects. A
    product that B has computed in advance gives another gradient. The change is divided by the
    number of entries of grad_z in all ``many`` micro-batches, so that it is about as large as a
    gradient. ``first`` is called before each change.
    """
    served = iter(kwargs["changes"])

    def changed(kept: Any) -> Any:
        first()
        seed = next(served)()
        # Inference mode permits changes of all tensors, also of those that were made in this mode.
        with torch.inference_mode():
            for layer, (_, grad_z) in enumerate(kept):
                entries = grad_z.numel()
                change = (draw(seed, layer, entries) - 0.5) / (many * entries)
                grad_z += torch.from_numpy(change).view(grad_z.shape).to(grad_z)
        return backward_weights(kept)

    return changed
