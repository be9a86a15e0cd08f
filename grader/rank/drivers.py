"""A driver is the small program in which a rank calls a student's function.

The judge names the driver. Mostly it is ``plain``, which just calls the function. A driver takes
the student's function or class, the decoded arguments, and ``mark``, which leaves a named mark in
the rank's trail. It returns what is to be judged. Drivers are not secret.
"""

import ctypes
import gc
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist

from grader.rank.mesh_groups import row_and_column
from grader.rank.meter import Meter
from grader.rank.receives import Receives
from grader.rank.timeline_programs import SCENES
from grader.wire.drawn import draw
from grader.wire.frames import NOT_SENT_ON
from grader.wire.served import Bench

M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
# In front of a block, glibc keeps its size. This bit of it says that the block has its own mapping.
SIZE_BYTES, IS_MAPPED = ctypes.sizeof(ctypes.c_size_t), 2
LARGE, LARGEST_GAP = 1 << 16, 1 << 24  # bytes of a block


class Mark(Protocol):
    def __call__(self, name: str) -> None:
        """Add a mark of this name to the rank's trail, its list of events."""

    def use(self, name: str) -> Any:
        """Use something that the judge has handed to the rank, and return the result of the use.

        ``name`` says which use this is: see ``served``. Also add a mark of this name to the trail.
        """

    def before_a_send(self) -> None:
        """Let the judge look at what the rank has done so far, if the judge wants to.

        See ``report.Call.clocks``.
        """


def make_probe(node: dict, mark: Mark) -> Callable[[], Any]:
    """Return a function for the student to call, which adds marks when it begins and ends.

    The function lasts ``node["seconds"]`` seconds, and returns the value that the judge has set.
    """

    def probe() -> Any:
        mark.use(f"{node['probe']} began")
        time.sleep(node["seconds"])
        return mark.use(f"{node['probe']} ended")

    return probe


def plain(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    return function(*args, **kwargs)


def received_at_wait(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Return the result of a call in which received data reaches its tensor only in ``wait()``.

    See ``receives``.
    """
    with Receives(mark):
        return function(*args, **kwargs)


def in_turn(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Make several calls, one after the other, and return the list of their results.

    ``args`` holds the arguments of each call. As in ``received_at_wait``, received data reaches its
    tensor only in ``wait()``.
    """
    with Receives(mark):
        return [function(*each, **kwargs) for each in args]


def emptied(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Empty the list that a first call returned, and return the result of a second call."""
    first = function(*args, **kwargs)
    if isinstance(first, list):
        first.clear()
    return function(*args, **kwargs)


def described(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Return the result, whether it requires a gradient, and the bytes that its tensors keep alive.

    The result requires a gradient if any tensor in it requires a gradient.
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
    """Call a function with a tensor and with a function ``compute``, and return the result.

    ``compute`` only reads the tensor: it adds a mark, and returns a copy of the tensor.
    """

    def compute() -> torch.Tensor:
        mark("compute reads")
        return args[0].detach().clone()

    return function(args[0], compute)


def overwritten_after(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Call a function, overwrite its first argument with the value ``after``; return the result.

    The owner of that tensor may overwrite it, because the function has returned.
    """
    value = kwargs.pop("after")
    result = function(*args, **kwargs)
    args[0].fill_(value)
    return result


def remembered(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Make calls as ``in_turn`` does. Also return how much memory the saved tensors z keep alive.

    The function returns (y, saved), and ``saved`` holds pairs whose second part is a z. The number
    of bytes is None if the results are of another form.
    """
    results = in_turn(function, args, kwargs, mark)
    try:
        memory = [z.untyped_storage() for _, saved in results for _, z in saved]
    # The function returned something else. The check of the values will say so.
    except (TypeError, ValueError, AttributeError):
        return {"results": results, "kept": None}
    return {
        "results": results,
        "kept": sum({own.data_ptr(): own.nbytes() for own in memory}.values()),
    }


def twice(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Make two calls with the very same arguments, as a training loop does; return both results."""
    return [function(*args, **kwargs) for _ in range(2)]


class Once:
    """An iterator that can be used only once, as the generator ``model.parameters()``.

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
    """Return the result of a call that gets an iterator in place of its first argument, a list.

    The iterator can be used only once, as ``model.parameters()``.
    """
    first, *rest = args
    return function(Once(first, mark), *rest, **kwargs)


def views(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Call a function with views of the tensors in its first argument, a list.

    Return the result, and what the views hold after the call. If the function gives a view other
    memory, by ``parameter.data = …``, the tensor behind the view is unchanged.
    """
    first, *rest = args
    seen = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in first]
    value = function(list(seen), *rest, **kwargs)
    return {"value": value, "views": [view.detach() for view in seen]}


class Scaled(torch.autograd.Function):
    """The identity. Its backward pass multiplies the gradient by the number that ``ask`` returns.

    ``ask`` is called in the backward pass, and not before.
    """

    @staticmethod
    def forward(ctx: Any, y: torch.Tensor, ask: Callable[[], float]) -> torch.Tensor:
        ctx.ask = ask
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple:
        return grad * ctx.ask(), None


def backward_passes(buckets_class: type, args: list, kwargs: dict, mark: Mark) -> Any:
    """Run backward passes of a deep MLP, with a student's ``GradientBuckets`` to average gradients.

    Each pass leaves the marks ``backward began``, ``backward ended`` and, when its gradients have
    been read, ``pass ended``. The arguments are in ``kwargs``.

    Args:
        weights: the distinct parameters.
        registered: the list of indices of the parameters that are handed to the buckets. An index
            that appears twice is a tied parameter.
        frozen: the indices of the parameters that require no gradient.
        bucket_bytes: the size of a bucket that is asked for.
        passes: for each backward pass ``(x, layers)``. ``layers`` holds the index of the weight
            that each layer uses.
        squared: the indices of parameters, of any shape, whose squares are added to the loss.
        factors: functions of the judge, one for each pass; they may be left out. The gradient that
            reaches the first layer is multiplied by the number that the pass's function returns.
            Nobody knows this number before the function is called.
        as_list: whether the buckets get the parameters as a list. Otherwise they get an iterator
            that can be used only once.

    Returns:
        For each pass the list of all parameters' gradients; None if a parameter has no gradient.
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
    """Return the result of a stopwatch that measures an operation of the judge.

    The clock, the synchronization and the barrier are also those of the judge: see
    ``served.Bench``. With ``measured_again``, the stopwatch then measures another operation before
    the first result is returned.
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
    """Run a sweep whose runs take no time, and return the list of the rows that it yields.

    The judge answers the runs, in order. Each row adds a mark to the trail. If the function returns
    something that is not iterable, return that as it is. A row that is not iterable is added to the
    list as it is.
    """

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
    """Return the result, the bytes of memory that it keeps alive, and two facts about it.

    The facts are whether the result is contiguous, and whether no argument shares its memory. If
    the result is no tensor, return only the result.
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
    """Return the value of a differentiable function, and the gradients of its arguments.

    The function may be a ``torch.autograd.Function``. The last argument is the gradient of the
    value, or None to differentiate ``value.sum()``. This argument is returned as well.
    """
    *args, upstream = args
    value = getattr(function, "apply", function)(*args)
    mark("backward began")
    if isinstance(value, torch.Tensor) and value.requires_grad:
        value.sum().backward() if upstream is None else value.backward(upstream)
    mark("backward ended")
    return {"value": value, "gradients": [arg.grad for arg in args], "upstream": upstream}


def apply_and_drop(
    function: type[torch.autograd.Function], args: list, kwargs: dict, mark: Mark
) -> Any:
    """Apply a ``torch.autograd.Function``, and drop our reference to its argument.

    Return the value, and whether the argument is still in memory. If it is, only the function can
    have kept it.
    """
    (leaf,) = args
    term = leaf * 1
    alive = weakref.ref(term)
    value = function.apply(term)
    del term
    gc.collect()
    return {"value": value, "kept": alive() is not None}


def stack_of_pairs(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Run pairs of layers, one after the other, and return the output and all gradients.

    ``args`` holds the list of pairs, the input of the first pair, and the gradient of the output of
    the last pair. With ``residual``, the input of each pair is added to the output of this pair.
    The gradients are those of the first input and of all weights.
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


def in_groups(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Gather a tensor in each of the process groups that a function returns.

    ``own`` is this rank's tensor. Return, for each group, the tensors of its ranks; None for what
    is no group of this rank, or is not what its other ranks got, and None for each group after the
    second. If the function returns no tuple or list, return that as it is.
    """
    groups, own = function(*args), kwargs["own"]
    if not isinstance(groups, (tuple, list)):
        return groups
    size = dist.get_world_size()
    # Row r tells which ranks are in the groups that rank r got, first to last.
    of_ranks = torch.zeros(size, 2, size, dtype=torch.int64, device=own.device)
    for index, group in enumerate(groups[:2]):
        if isinstance(group, dist.ProcessGroup):
            of_ranks[dist.get_rank(), index, dist.get_process_group_ranks(group)] = 1
    dist.all_reduce(of_ranks)
    gathered = [_gathered(own, group, of_ranks[:, i]) for i, group in enumerate(groups[:2])]
    return gathered + [None] * (len(groups) - 2)


def _gathered(own: torch.Tensor, group: Any, of_ranks: torch.Tensor) -> torch.Tensor | None:
    """Return the tensors of the ranks of a group; None where these ranks would wait for ever."""
    if not isinstance(group, dist.ProcessGroup):
        return None
    same = of_ranks[dist.get_process_group_ranks(group)]
    if not same.eq(same[0]).all():
        return None
    gathered = [torch.empty_like(own) for _ in range(group.size())]
    dist.all_gather(gathered, own, group=group)
    return torch.stack(gathered)


def on_mesh(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Return the result of a call whose last two arguments are process groups of this rank.

    The ranks stand on a mesh of ``shape``, row by row. The groups are those of the rank's row and
    of its column.
    """
    return function(*args, *row_and_column(kwargs["shape"][1]))


def metered(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Return the result, and the meter's ledger of products and sends: see ``meter.Meter``."""
    mark.before_a_send()  # a first look, before anything is computed
    with Meter(_tensors([args, kwargs]), mark.before_a_send) as meter:
        value = function(*args, **kwargs)
    return {"value": value, "ledger": meter.ledger}


def in_step(towards: int, function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Call the function as ``metered`` does, but send messages in step with the neighbour.

    This rank sends a message only after the neighbour has sent on the previous message. ``towards``
    is the direction of the messages: +1 to the next rank, -1 to the rank before. If the neighbour
    does not send a message on in time, a mark records that, and this rank does not wait any more.
    It never waits for a neighbour that has no rank to send messages on to. This driver is for gloo.
    The hub has a rule of its own: see ``hub.in_step``.
    """
    step = Step(towards, mark)
    with Meter(_tensors([args, kwargs]), step.before_a_send) as meter:
        value = function(*args, **kwargs)
    return {"value": value, "ledger": meter.ledger}


class Step:
    """Records in the rendezvous file how many messages this rank has sent, for the other ranks."""

    PATIENCE = 8.0  # seconds, though an honest neighbour needs only milliseconds

    def __init__(self, towards: int, mark: Mark) -> None:
        self.mark = mark
        self.rank, size = dist.get_rank(), dist.get_world_size()
        self.neighbour = self.rank + towards
        # whether the neighbour has a rank to send messages on to
        self.sends_on = 0 <= self.neighbour + towards < size
        self.sent = 0
        self.store = dist.FileStore(str(Path("..", "..", "rendezvous").resolve()), size)

    def before_a_send(self) -> None:
        if self.sends_on and self.sent:
            awaited = f"sent-{self.neighbour}-{self.sent - 1}"
            deadline = time.monotonic() + self.PATIENCE
            while not self.store.check([awaited]):
                if time.monotonic() > deadline:
                    self.mark(f"{NOT_SENT_ON} {self.sent - 1}")
                    self.sends_on = False
                    break
                time.sleep(0.002)
        self.store.set(f"sent-{self.rank}-{self.sent}", "yes")
        self.sent += 1


def with_timeline(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Make calls that get a timeline as their last argument, each under a meter.

    ``times`` is the number of calls with the same tensors. ``then`` holds the arguments of a
    further call. Return the results of all calls. Also return the ledger, the spans and the first
    argument of the last call.
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
    """Make calls with lists of spans for each stage, and return the list of the results.

    Each argument holds the spans of one call, written as plain tuples. Also return whether the
    calls left the lists unchanged.
    """
    from handout.timeline import Span

    given = [[[Span(*span) for span in of_stage] for of_stage in timelines] for timelines in args]
    before = [[list(of_stage) for of_stage in timelines] for timelines in given]
    return {"fractions": [function(timelines) for timelines in given], "kept": given == before}


def free_at_once() -> None:
    """Have the C library return freed memory to the system from now on, where it can (glibc).

    Otherwise the memory of a process depends on what it has allocated and freed before.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return
    library.mallopt(M_MMAP_THRESHOLD, LARGE)  # larger blocks have a mapping of their own
    # But a large block is put into a gap of the heap if one is left, and stays there when it is
    # freed. So fill these gaps, the largest first. Nobody writes to them, so they take no memory.
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    size = LARGEST_GAP
    while size >= LARGE:
        block = library.malloc(size)
        if not block or ctypes.c_size_t.from_address(block - SIZE_BYTES).value & IS_MAPPED:
            library.free(block)
            size //= 2
    library.malloc_trim(0)


def _meet_at_rest() -> None:
    """Give back the memory that is not needed, and meet, so that the hub sees what is left."""
    gc.collect()
    free_at_once()
    dist.barrier()


def drawn_shards(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Call a step of a sharded model with large shards, and return its loss and some sums.

    This rank's shard of layer l holds the ``entries`` numbers that ``draw`` returns for the rank's
    ``seed`` and index l, as (1 + u/2) / D. The ranks meet before the step, so that the hub sees
    what memory there is without it. If the judge's functions follow the layers (see
    ``followed_layers``), the step gets them. The sums are those of the shards of the gradients.
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
    loss, gradients = step(function, [shards, x, *followed], {}, mark)
    return loss, [gradient.sum() for gradient in gradients]


def there_and_back(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Call attention, and its backward pass with what it returned; return all results in a tuple.

    ``args`` are q, k, v, the gradient of the output, and whether attention is causal. The ranks
    meet before, between and after the two, so that the hub sees what memory they have then.
    """
    from handout import sequence_and_experts  # the submission

    q, k, v, grad, causal = args
    _meet_at_rest()
    output, logsumexp = function(q, k, v, causal)
    mark("backward began")
    dist.barrier()
    gradients = sequence_and_experts.ring_attention_backward(
        q, k, v, output, logsumexp, grad, causal
    )
    dist.barrier()
    return output, logsumexp, *gradients


def zero_steps(zero_class: type, args: list, kwargs: dict, mark: Mark) -> Any:
    """Make steps with a student's ``ZeroAdamW``, one for each list of gradients in ``args[1]``.

    ``args[2]`` holds a function of the judge for each step but the first. It returns the learning
    rate of this step, which nobody knows before, and which differs from rank to rank. Return the
    weights before the first step and after each step, the optimizer, and the gradients as they are
    at the end.
    """
    weights, steps, rates = args
    zero = zero_class(weights, **kwargs)
    before = [weight.detach().clone() for weight in weights]
    after = []
    for number, gradients in enumerate(steps):
        if number:
            _set_rate(zero.optimizer, rates[number - 1]())
        zero.step(list(gradients))
        after.append([weight.detach().clone() for weight in weights])
    kept = {"before": before, "gradients": steps}
    return {"weights": after, "optimizer": zero.optimizer, **kept}


def _set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Set the learning rate as torch's schedulers do."""
    for group in optimizer.param_groups:
        group["lr"] = rate


RESTING: list = []  # what ``zero_rests`` and ``rests`` keep until the call after it


def zero_rests(zero_class: type, args: list, kwargs: dict, mark: Mark) -> Any:
    """Make steps of a large ``ZeroAdamW``, or communicate while it rests after its steps.

    The first call gets the learning rates as ``zero_steps`` does, the ``seed`` of the weights, and
    ``own_seed``, that of this rank's gradients. There are ``tensors`` weights of ``entries``
    numbers, which ``draw`` returns. Index i belongs to tensor i, and later indices to later steps.
    Return the sum of each weight at the end, and the sum of its squares. The second call has no
    arguments. The ranks meet at the beginning of each call. So the hub sees what memory there is
    without weights, and what they and the optimizer take between two steps.
    """
    _meet_at_rest()
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
        indices = range(number * count, (number + 1) * count)
        zero.step([torch.from_numpy(draw(own_seed, index, entries)) for index in indices])
    RESTING.append((zero, weights))
    return [(weight.sum(), weight.square().sum()) for weight in weights]


def rests(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Make a call and keep its result, or communicate while the rank has only that.

    A call without arguments does the latter: the hub sees what memory the result takes, and all
    else that the function has kept. Afterwards the result is dropped.
    """
    if args:
        RESTING.append(function(*args, **kwargs))
        return RESTING[-1]
    _meet_at_rest()
    RESTING.clear()
    return None


def followed_layers(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Call a step of a sharded model with a calculus that the judge follows, and return its result.

    The last two arguments hold a function of the judge for each layer, forward and backward. Each
    returns a number that nobody knows before the call. Going forward, the layer's output is
    multiplied by this number; going back, the gradient of this output. Before the rank asks for the
    number, a mark tells the fingerprints of what the layer was called with. With ``metered``, also
    return the meter's ledger, as ``metered`` does.
    """
    from handout import mlp  # the copy beside the submission

    *given, forward, backward = args
    layers = len(forward)
    ahead, back = iter(range(layers)), iter(reversed(range(layers)))

    def layer_forward(x: torch.Tensor, weight: torch.Tensor) -> tuple:
        layer = _next_layer(ahead, "layer_forward")
        _tell_fingerprints(mark, f"forward of layer {layer} got", x, weight)
        factor = forward[layer]()
        output, z = mlp.layer_forward(x, weight)
        return factor * output, z

    def layer_backward(
        x: torch.Tensor, z: torch.Tensor, weight: torch.Tensor, grad_y: torch.Tensor
    ) -> tuple:
        layer = _next_layer(back, "layer_backward")
        _tell_fingerprints(mark, f"backward of layer {layer} got", x, weight, grad_y)
        factor = backward[layer]()
        return mlp.layer_backward(x, z, weight, factor * grad_y)

    followed = [*given, layer_forward, layer_backward]
    return metered(function, followed, {}, mark) if kwargs.get("metered") else function(*followed)


def _next_layer(layers: Iterator[int], name: str) -> int:
    layer = next(layers, None)
    if layer is None:
        raise RuntimeError(f"{name} was called more often than there are layers")
    return layer


def _tell_fingerprints(mark: Mark, name: str, *tensors: torch.Tensor) -> None:
    """Add a mark with a number for each tensor, which depends on all its entries in their order."""
    numbers = []
    for tensor in tensors:
        entries = tensor.detach().reshape(-1).to(torch.float64)
        places = torch.linspace(1, 2, len(entries), dtype=torch.float64, device=entries.device)
        numbers.append(float(entries.dot(places)))
    mark(" ".join([name, *(f"{number:.9e}" for number in numbers)]))


def chunked(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Run steps of a pipeline with the given runner, and return ``(loss, gradients)`` of the last.

    ``args`` are those of ``run_schedules``: the schedules of all stages, the weights of each chunk
    of this stage, x, the batch size and the number of micro-batches. If the schedules have halves
    of backward passes, the student's functions of problem 8.2 do them. ``changes`` has a function
    of the judge for each W of this stage, in order: see ``_changed``. ``times`` is the number of
    steps. ``function`` is not called. It names what is judged.
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
    """Do both halves of a backward pass, and return the gradients of the weights.

    ``function`` does B, and the student's function of problem 8.2 does W. ``changes`` has one
    function of the judge, see ``_changed``.
    """
    from handout import schedules

    _, kept = function(*args)
    return _changed(schedules.backward_weights, 1, kwargs)(kept)


def _changed(backward_weights: Callable, many: int, kwargs: dict) -> Callable:
    """Return W, with each grad_z changed before it is called.

    The change is drawn from a seed that nobody knows before W begins, and is added in place. So
    only a product of x and the new grad_z gives the gradient that the judge expects. What B may
    have computed in advance does not. The numbers are divided by the number of entries of the
    batch, which has ``many`` micro-batches: that is about the size of a gradient.
    """
    served = iter(kwargs["changes"])

    def changed(kept: Any) -> Any:
        seed = next(served)()
        # In inference mode, because it permits to change tensors of this mode, too.
        with torch.inference_mode():
            for layer, (_, grad_z) in enumerate(kept):
                entries = grad_z.numel()
                change = (draw(seed, layer, entries) - 0.5) / (many * entries)
                grad_z += torch.from_numpy(change).view(grad_z.shape).to(grad_z)
        return backward_weights(kept)

    return changed


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
    "apply_and_drop": apply_and_drop,
    "stack_of_pairs": stack_of_pairs,
    "in_groups": in_groups,
    "on_mesh": on_mesh,
    "metered": metered,
    "in_step +1": partial(in_step, 1),
    "in_step -1": partial(in_step, -1),
    "with_timeline": with_timeline,
    "of_spans": of_spans,
    "drawn_shards": drawn_shards,
    "there_and_back": there_and_back,
    "zero_steps": zero_steps,
    "zero_rests": zero_rests,
    "rests": rests,
    "followed_layers": followed_layers,
    "chunked": chunked,
    "halves": halves,
    **SCENES,
}
