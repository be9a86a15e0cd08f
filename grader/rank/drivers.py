"""How a rank calls a student's function: mostly just so, sometimes inside a small program that the
judge asks for.

A driver takes the student's function or class, the decoded arguments and ``mark``, which leaves a
named mark in the rank's trail, and returns what is to be judged. It is not secret.
"""

import gc
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from grader.rank.meter import Meter
from grader.rank.receives import Receives
from grader.rank.timeline_programs import SCENES
from grader.wire.frames import NOT_SENT_ON
from grader.wire.served import Bench


class Mark(Protocol):
    def __call__(self, name: str) -> None:
        """Add a mark of this name to the rank's trail, its list of events."""

    def use(self, name: str) -> Any:
        """Leave a mark of a use of what the judge has handed to the rank, and return what that
        gives: see ``served``.
        """

    def before_a_send(self) -> None:
        """Let the judge look at what the rank has done so far, where it wants to: see
        ``report.Call.clocks``.
        """


def make_probe(node: dict, mark: Mark) -> Callable[[], Any]:
    """A function for the student to call, which leaves marks when it begins and when it ends."""

    def probe() -> Any:
        mark.use(f"{node['probe']} began")
        time.sleep(node["seconds"])
        return mark.use(f"{node['probe']} ended")

    return probe


def plain(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    return function(*args, **kwargs)


def received_at_wait(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """The result, where what a rank receives is there after ``wait()``, and not before."""
    with Receives(mark):
        return function(*args, **kwargs)


def in_turn(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Several calls, one after the other, and all their results at the end: ``args`` holds the
    arguments of each.
    """
    with Receives(mark):
        return [function(*each, **kwargs) for each in args]


def emptied(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Empty the list that a first call returned, and return the result of a second one."""
    first = function(*args, **kwargs)
    if isinstance(first, list):
        first.clear()
    return function(*args, **kwargs)


def described(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Return the result, whether any tensor in it requires a gradient, and how many bytes of memory
    its tensors keep alive.
    """
    result = function(*args, **kwargs)
    tensors = list(_tensors([result]))
    memory = {
        storage.data_ptr(): storage.nbytes()
        for storage in (tensor.untyped_storage() for tensor in tensors)
    }
    requires = any(tensor.requires_grad for tensor in tensors)
    return {"value": result, "requires gradient": requires, "kept": sum(memory.values())}


def read_while_computing(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Call a function of a tensor and of something to compute, which here reads that tensor."""

    def compute() -> torch.Tensor:
        mark("compute reads")
        return args[0].detach().clone()

    return function(args[0], compute)


def overwritten_after(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Overwrite the first argument with the value ``after`` as soon as the result is there, as its
    owner may.
    """
    value = kwargs.pop("after")
    result = function(*args, **kwargs)
    args[0].fill_(value)
    return result


def remembered(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """As ``in_turn``, of functions that return (y, saved); and how many bytes of memory their saved
    z keep alive.
    """
    results = in_turn(function, args, kwargs, mark)
    try:
        memory = [z.untyped_storage() for _, saved in results for _, z in saved]
    # something else came back: whoever looks at the values says so
    except (TypeError, ValueError, AttributeError):
        return {"results": results, "kept": None}
    return {
        "results": results,
        "kept": sum({own.data_ptr(): own.nbytes() for own in memory}.values()),
    }


def twice(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Two calls with the very same arguments, as a training loop makes them, and both results."""
    return [function(*args, **kwargs) for _ in range(2)]


class Once:
    """Passes by once, as the generator ``model.parameters()`` does.

    Who goes through it again gets nothing, and leaves a mark.
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
    """The first argument, a list, comes as ``model.parameters()`` does."""
    first, *rest = args
    return function(Once(first, mark), *rest, **kwargs)


def views(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """The tensors of the first argument, a list, come as views: the result, and what the views hold
    at the end.

    Whoever gives a tensor other memory, by ``parameter.data = …``, leaves what it was a view of as
    it was.
    """
    first, *rest = args
    seen = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in first]
    value = function(list(seen), *rest, **kwargs)
    return {"value": value, "views": [view.detach() for view in seen]}


class Scaled(torch.autograd.Function):
    """The identity, whose gradient is multiplied by what ``ask`` gives when it comes to that."""

    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, ask: Callable[[], float]) -> torch.Tensor:
        ctx.ask = ask
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        return grad * ctx.ask(), None


def backward_passes(buckets_class: type, args: list, kwargs: dict, mark: Mark) -> Any:
    """Backward passes of a deep MLP whose gradients are averaged by a student's
    ``GradientBuckets``.

    Arguments: ``weights``, the distinct parameters; ``registered``, the list of indices handed to
    the buckets (an index that appears twice is a tied parameter); ``frozen``, the indices that
    require no gradient; ``bucket_bytes``; ``passes``, for each backward pass ``(x, layers)`` with
    ``layers`` the index of the weight that each layer uses; ``squared``, the indices of parameters
    of any shape whose squares are added to the loss; ``factors``, functions of the judge's, one for
    each pass: what the gradient that goes on to the first layer is multiplied by. Nobody knows
    before what that is. Returns for each pass the list of all parameters' gradients. Each pass
    leaves the marks ``backward began``, ``backward ended`` and, when its gradients have been read,
    ``pass ended``.
    """
    from handout import mlp  # the copy beside the submission

    weights = [w.requires_grad_(i not in kwargs["frozen"]) for i, w in enumerate(kwargs["weights"])]
    parameters = Once([weights[i] for i in kwargs["registered"]], mark)
    buckets = buckets_class(
        list(parameters) if kwargs.get("as_list") else parameters, kwargs["bucket_bytes"]
    )
    results = []
    factors = kwargs.get("factors", [])
    for p, (x, layers) in enumerate(kwargs["passes"]):
        for weight in weights:
            weight.grad = None
        used, of_first = [weights[i] for i in layers], 1 if factors else 0
        y = mlp.forward(used[:of_first], x)
        loss = mlp.loss(mlp.forward(used[of_first:], Scaled.apply(y, factors[p]) if factors else y))
        loss = loss + sum(weights[i].square().sum() for i in kwargs["squared"])
        mark("backward began")
        loss.backward()
        mark("backward ended")
        buckets.wait()
        results.append([None if w.grad is None else w.grad.detach().clone() for w in weights])
        mark("pass ended")
    return results


def timed(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """A stopwatch, with a clock, an operation, a synchroniser and a barrier of the judge's: see
    ``served.Bench``.

    ``measured_again``: another operation is measured before the result is looked at.
    """
    result = _measured(function, kwargs["warm_up"], kwargs["iterations"], mark.use)
    if kwargs.get("measured_again"):
        other = Bench(dist.get_rank(), [0.5] * 3)
        _measured(function, 0, 3, lambda name: getattr(other, name)())
    return result


def _measured(stopwatch: Callable, warm_up: int, iterations: int, use: Callable[[str], Any]) -> Any:
    given = {name: partial(use, name) for name in Bench.USES}
    return stopwatch(given.pop("operation"), warm_up, iterations, **given)


def swept(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """A sweep whose runs take no time, and what it yields. The judge answers the runs, in order."""

    def run(collective: str, size: int) -> tuple:
        return tuple(mark.use(f"run {collective} {size}"))

    table = function(*args, run)
    if not isinstance(table, Iterable):
        return table
    rows = []
    for row in table:
        mark("row")
        rows.append(tuple(row) if isinstance(row, Iterable) else row)
    return rows


def stored(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """The result, the bytes of the memory that it keeps alive, and whether that is contiguous and
    its own.
    """
    result = function(*args, **kwargs)
    if not isinstance(result, torch.Tensor):
        return {"value": result}
    memory = result.untyped_storage()
    own = memory.data_ptr() not in [
        tensor.untyped_storage().data_ptr() for tensor in _tensors([args, kwargs])
    ]
    return {
        "value": result,
        "storage": memory.nbytes(),
        "contiguous": result.is_contiguous(),
        "own": own,
    }


def differentiate(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """A differentiable function, or a ``torch.autograd.Function``: its value, and the gradients of
    its arguments.

    The last argument is the gradient of the value, or None for that of ``value.sum()``.
    """
    *args, upstream = args
    value = getattr(function, "apply", function)(*args)
    mark("backward began")
    if isinstance(value, torch.Tensor) and value.requires_grad:
        value.sum().backward() if upstream is None else value.backward(upstream)
    mark("backward ended")
    return {"value": value, "gradients": [arg.grad for arg in args], "upstream": upstream}


def let_go(function: type[torch.autograd.Function], args: list, kwargs: dict, mark: Mark) -> Any:
    """The value of a ``torch.autograd.Function``, and whether its argument is kept when nobody else
    has it.
    """
    (leaf,) = args
    term = leaf * 1
    alive = weakref.ref(term)
    value = function.apply(term)
    del term
    gc.collect()
    return {"value": value, "kept": alive() is not None}


def stack_of_pairs(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Pairs of layers, one after the other: ``args`` holds the list of pairs, their input, and the
    gradient of the output.

    With ``residual`` the input of each is added to its output.
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


def metered(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """The result, and the ledger of products and sends."""
    mark.before_a_send()  # nothing is computed yet
    with Meter(_tensors([args, kwargs]), mark.before_a_send) as meter:
        value = function(*args, **kwargs)
    return {"value": value, "ledger": meter.ledger}


def in_step(towards: int, function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """As ``metered``, but a rank sends a message only when the one before it has been sent on.

    ``towards`` is where messages go, +1 to the next rank and -1 to the one before. Where the
    neighbour does not send on in time, a mark says so, and nobody waits any more. The hub has a
    rule for this: see ``steps``.
    """
    step = Step(towards, mark)
    with Meter(_tensors([args, kwargs]), step.before_a_send) as meter:
        value = function(*args, **kwargs)
    return {"value": value, "ledger": meter.ledger}


class Step:
    """Tells the other ranks how many messages this one has sent, in the file of the rendezvous."""

    PATIENCE = 8.0  # seconds, for what takes milliseconds

    def __init__(self, towards: int, mark: Mark) -> None:
        self.mark = mark
        self.rank, size = dist.get_rank(), dist.get_world_size()
        self.neighbour = self.rank + towards
        self.sends_on = 0 <= self.neighbour + towards < size
        self.sent = 0
        self.store = dist.FileStore(str(Path("..", "..", "rendezvous").resolve()), size)

    def before_a_send(self) -> None:
        if self.sends_on and self.sent:
            awaited, deadline = (
                f"sent-{self.neighbour}-{self.sent - 1}",
                time.monotonic() + self.PATIENCE,
            )
            while not self.store.check([awaited]):
                if time.monotonic() > deadline:
                    self.mark(f"{NOT_SENT_ON} {self.sent - 1}")
                    self.sends_on = False
                    break
                time.sleep(0.002)
        self.store.set(f"sent-{self.rank}-{self.sent}", "yes")
        self.sent += 1


def with_timeline(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Calls that get a timeline as their last argument: the last one's ledger, spans and first
    argument, and all their results.

    ``times`` says how many calls there are with the same tensors; ``then`` holds the arguments of a
    further one.
    """
    from handout.timeline import Timeline  # the copy beside the submission

    calls = [args] * kwargs.get("times", 1) + ([kwargs["then"]] if "then" in kwargs else [])
    values = []
    for own in calls:
        timeline = Timeline()
        result = metered(lambda *given: function(*given, timeline), own, {}, mark)
        values.append(result["value"])
    return result | {
        "values": values,
        "spans": [tuple(span) for span in timeline.spans],
        "schedule": own[0],
    }


def of_spans(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Calls with lists of spans for each stage, written as plain tuples: the results, and whether
    the lists are as they were.
    """
    from handout.timeline import Span

    given = [[[Span(*span) for span in of_stage] for of_stage in timelines] for timelines in args]
    before = [[list(of_stage) for of_stage in timelines] for timelines in given]
    return {"fractions": [function(timelines) for timelines in given], "kept": given == before}


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return (
        [tensor for item in value for tensor in _tensors(item)]
        if isinstance(value, (list, tuple))
        else []
    )


DRIVERS: dict[str, Callable] = {
    "plain": plain,
    "received_at_wait": received_at_wait,
    "in_turn": in_turn,
    "emptied": emptied,
    "described": described,
    "read_while_computing": read_while_computing,
    "overwritten_after": overwritten_after,
    "remembered": remembered,
    "twice": twice,
    "generator": generator,
    "views": views,
    "backward_passes": backward_passes,
    "timed": timed,
    "swept": swept,
    "stored": stored,
    "differentiate": differentiate,
    "let_go": let_go,
    "stack_of_pairs": stack_of_pairs,
    "metered": metered,
    "in_step +1": partial(in_step, 1),
    "in_step -1": partial(in_step, -1),
    "with_timeline": with_timeline,
    "of_spans": of_spans,
    **SCENES,
}
