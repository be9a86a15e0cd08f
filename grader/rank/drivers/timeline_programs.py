"""Drivers for a timeline: small programs that a rank runs for a drawing (``timeline.scenes``).

Each program calls a student's function once to warm up, and then a few times between marks. Nobody
checks the results, so the judge need not know the inputs. Each program makes its inputs itself.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from grader.rank.mesh_groups import row_and_column

Mark = Callable[[str], None]
RUNS = 8
LATE = 0.02  # seconds by which the last rank is late in an all-reduce with the option ``late``
# These are defaults. A scene's options with the same names in lowercase replace them.
ELEMENTS = 1 << 20  # 4 MiB
WIDTH, ROWS = 1024, 128
# This is also the number of layers on each stage of a pipeline. With 4 layers, computing takes far
# longer than sending a message.
LAYERS = 4


def _drawn(run: Callable[[], Any], mark: Mark, options: dict) -> None:
    """Run a program once to warm up, because the first run is slow, and then ``RUNS`` times.

    Before each of the ``RUNS`` runs all ranks meet in a barrier. Marks record when a run begins and
    ends, and how long the main thread was on a core. If the option ``once`` is True, there is only
    one run, with no warm-up, no barrier and no mark for the time on a core. This option is for a
    modelled cluster, on which nothing depends on this machine's speed.
    """
    if options.get("once"):
        with _piece("run 0", mark):
            return run()
    run()
    for number in range(RUNS):
        dist.barrier()
        with _piece(f"run {number}", mark):
            before = time.thread_time_ns()
            run()
            mark(f"{time.thread_time_ns() - before} ns on a core")


@contextmanager
def _piece(name: str, mark: Mark) -> Iterator[None]:
    mark(f"{name} began")
    yield
    mark(f"{name} ended")


def _sizes(options: dict) -> tuple[int, int, int]:
    """Return the numbers of layers and rows, and the width, from the options or the defaults."""
    return options.get("layers", LAYERS), options.get("rows", ROWS), options.get("width", WIDTH)


def _random(*shape: int) -> torch.Tensor:
    """Return a random tensor of this shape, the same on every rank."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def reduction(function: Callable, args: list, kwargs: dict, mark: Mark) -> None:
    """Run an all-reduce. If ``late`` is True, the last rank begins it later than all others."""
    tensor = torch.ones(kwargs.get("elements", ELEMENTS))
    last = dist.get_rank() == dist.get_world_size() - 1

    def run() -> None:
        if kwargs["late"] and last:
            with _piece("late", mark):
                time.sleep(LATE)
        function(tensor)

    _drawn(run, mark, kwargs)


def overlap(function: Callable, args: list, kwargs: dict, mark: Mark) -> None:
    """Run an all-reduce that should overlap with ten products of matrices."""
    tensor = torch.ones(kwargs.get("elements", ELEMENTS))
    matrix = _random(*2 * (kwargs.get("width", 512),))

    def compute() -> None:
        with _piece("compute", mark):
            for _ in range(10):
                torch.mm(matrix, matrix)

    _drawn(lambda: function(tensor, compute), mark, kwargs)


def timed_calls(function: Callable, args: list, kwargs: dict, mark: Mark) -> None:
    """Run a stopwatch on an all-reduce, while the last rank is late for every barrier.

    The tensor has 4 MiB if the options do not say otherwise. Marks record when the stopwatch runs.
    """
    tensor = torch.ones(kwargs.get("elements", ELEMENTS))
    last = dist.get_rank() == dist.get_world_size() - 1

    def barrier() -> None:
        if last:
            with _piece("late", mark):
                time.sleep(LATE / 4)
        dist.barrier()

    def run() -> None:
        reads = count()

        def clock() -> float:
            number, stops = divmod(next(reads), 2)
            mark(f"watch {number + 1} {'ended' if stops else 'began'}")
            return time.perf_counter()

        function(lambda: dist.all_reduce(tensor), 1, 4, clock=clock, barrier=barrier)

    _drawn(run, mark, kwargs)


def data_parallel(function: Callable, args: list, kwargs: dict, mark: Mark) -> None:
    """Run ``data_parallel_step`` with four layers (or as the options say) on this rank's rows."""
    from handout import mlp

    layers, rows, width = _sizes(kwargs)
    weights, shard = mlp.init_weights(layers, width), _random(rows, width)
    passes: dict[str, list[tuple[Any, str]]] = {
        "forward": [(mlp, "layer_forward"), (mlp, "forward"), (mlp, "loss")],
        "backward": [(mlp, "loss_backward"), (mlp, "layer_backward"), (torch.Tensor, "backward")],
    }
    passes["backward"] += [(torch.autograd, "backward"), (torch.autograd, "grad")]
    # The step is a single call. To mark its two passes, wrap the functions that the step calls.
    with ExitStack() as stack:
        for name, places in passes.items():
            for owner, attribute in places:
                told = _told(getattr(owner, attribute), name, mark)
                stack.enter_context(mock.patch.object(owner, attribute, told))
        _drawn(lambda: function(weights, shard), mark, kwargs)


def _told(function: Callable, name: str, mark: Mark) -> Callable:
    """Return the function with marks at the beginning and the end of each call."""

    def told(*args: Any, **kwargs: Any) -> Any:
        with _piece(name, mark):
            return function(*args, **kwargs)

    return told


def buckets(function: Callable, args: list, kwargs: dict, mark: Mark) -> None:
    """Run the step of ``data_parallel`` with ``GradientBuckets``.

    Each bucket has room for as many layers as ``together`` says, by default for one layer.
    """
    from handout import mlp

    layers, rows, width = _sizes(kwargs)
    weights = [w.requires_grad_() for w in mlp.init_weights(layers, width)]
    shard = _random(rows, width)
    averaged = function(weights, kwargs.get("together", 1) * weights[0].nbytes)

    def run() -> None:
        for weight in weights:
            weight.grad = None
        with _piece("forward", mark):
            loss = mlp.loss(mlp.forward(weights, shard))
        with _piece("backward", mark):
            loss.backward()
        averaged.wait()

    _drawn(run, mark, kwargs)


def columns(function: Callable, args: list, kwargs: dict, mark: Mark) -> None:
    """Run ``tensor_parallel_forward`` and ``tensor_parallel_backward`` on layers cut by columns."""
    from handout import mlp, tensor_parallel

    rank, size = dist.get_rank(), dist.get_world_size()
    layers, rows, width = _sizes(kwargs)
    width -= width % size
    mine = [
        weight.tensor_split(size, 1)[rank].contiguous()
        for weight in mlp.init_weights(layers, width)
    ]
    x = _random(rows, width)

    def run() -> None:
        with _piece("forward", mark):
            y, saved = function(mine, x)
        with _piece("backward", mark):
            tensor_parallel.tensor_parallel_backward(mine, saved, mlp.loss_backward(y))

    _drawn(run, mark, kwargs)


def pairs(function: Callable, args: list, kwargs: dict, mark: Mark) -> None:
    """Run ``megatron_pair`` forward and backward, once for every two layers of a model."""
    from handout import mlp

    rank, size = dist.get_rank(), dist.get_world_size()
    layers, rows, width = _sizes(kwargs)
    width -= width % size
    whole = mlp.init_weights(layers, width)
    parts = [w.tensor_split(size, 1 - i % 2)[rank].contiguous() for i, w in enumerate(whole)]
    mine, x = [part.requires_grad_() for part in parts], _random(rows, width).requires_grad_()

    def run() -> None:
        y = x
        with _piece("forward", mark):
            for column, row in zip(mine[::2], mine[1::2]):
                y = function(column, row, y)
        with _piece("backward", mark):
            mlp.loss(y).backward()

    _drawn(run, mark, kwargs)


def mesh(function: Callable, args: list, kwargs: dict, mark: Mark) -> None:
    """Run ``mesh_step`` with pairs of layers, on a mesh with rows of ``in_row`` ranks.

    If the world size is not divisible by ``in_row``, each rank is a row of its own. The batch has
    ``rows`` rows in total, and each row of the mesh gets an equal part of the batch.
    """
    from handout import mlp

    rank, size, in_row = dist.get_rank(), dist.get_world_size(), kwargs["in_row"]
    in_row = 1 if size % in_row else in_row
    layers, rows, width = _sizes(kwargs)
    width -= width % in_row
    groups = row_and_column(in_row)
    whole = mlp.init_weights(layers, width)
    cuts = [w.tensor_split(in_row, 1 - i % 2)[rank % in_row] for i, w in enumerate(whole)]
    mine = [cut.contiguous() for cut in cuts]
    x = _random(max(1, rows * in_row // size), width)
    _drawn(lambda: function(list(zip(mine[::2], mine[1::2])), x, *groups), mark, kwargs)


def ring(function: Callable, args: list, kwargs: dict, mark: Mark) -> None:
    """Run ring attention. Every rank has 256 rows of queries, keys and values."""
    rank = dist.get_rank()
    whole = _random(3, 256 * dist.get_world_size(), 64)
    q, k, v = (rows[256 * rank :][:256].contiguous() for rows in whole)
    _drawn(lambda: function(q, k, v, kwargs["causal"]), mark, kwargs)


def experts(function: Callable, args: list, kwargs: dict, mark: Mark) -> None:
    """Run a mixture of experts, two on each rank. The gate prefers the experts of rank 0."""
    from handout import mlp

    size, (_, rows, width) = dist.get_world_size(), _sizes(kwargs)
    weights = mlp.init_weights(2, width)
    gate = _random(width, 2 * size) / width**0.5
    gate[:, 2:] *= 0.5
    x = torch.randn(rows, width, generator=torch.Generator().manual_seed(dist.get_rank()))
    _drawn(lambda: function(gate, weights, x), mark, kwargs)


def _marked(mark: Mark) -> Any:
    """Return a ``handout.timeline.Timeline`` that adds marks when a span begins and ends."""
    from handout.timeline import Timeline

    class Marked(Timeline):
        @contextmanager
        def span(self, kind: str, micro_batch: int) -> Iterator[None]:
            with _piece(f"{kind} {micro_batch}", mark), super().span(kind, micro_batch):
                yield

    return Marked()


def pipeline(function: Callable, args: list, kwargs: dict, mark: Mark) -> None:
    """Run ``run_schedule`` with a few layers on every stage.

    ``schedule`` names the student's function that makes the schedule. For a single micro-batch,
    ``schedule`` is None.
    """
    from handout import mlp, pipeline_parallel

    stage, size, count = dist.get_rank(), dist.get_world_size(), kwargs["micro_batches"]
    actions = [("forward", 0), ("backward", 0)]
    if kwargs["schedule"]:
        actions = getattr(pipeline_parallel, kwargs["schedule"])(stage, size, count)
    layers, rows, width = _sizes(kwargs)
    weights = mlp.init_weights(layers, width)
    x = _random(rows, width) if stage == 0 else None
    _drawn(lambda: function(actions, weights, x, rows, count, _marked(mark)), mark, kwargs)


def chunks(function: Callable, args: list, kwargs: dict, mark: Mark) -> None:
    """Run a student's schedules, with as many layers on each stage as in ``pipeline``.

    ``chunks`` is the number of chunks of each stage; 0 means the zero-bubble schedule. The number
    of micro-batches is ``micro_batches``, rounded up to a multiple of the number of stages. If
    ``forward_first`` is True, each stage does all its forward passes first. This turns 1F1B into
    GPipe.
    """
    from handout import mlp, schedule_runner, schedules

    size, cut = dist.get_world_size(), kwargs["chunks"]
    many = -(-kwargs["micro_batches"] // size) * size  # whole groups of the interleaved schedule
    arguments = (cut,) if cut else ()
    made = [function(stage, size, *arguments, many) for stage in range(size)]
    halves = () if cut else (schedules.backward_input, schedules.backward_weights)
    if kwargs.get("forward_first"):
        made = [sorted(own, key=lambda action: action[0] != "F") for own in made]
    layers, rows, width = _sizes(kwargs)
    rows -= rows % many
    own = mlp.init_weights(layers, width)
    each = layers // max(cut, 1)
    weights = [own[first:][:each] for first in range(0, layers, each)]
    x = _random(rows, width) if dist.get_rank() == 0 else None
    run = partial(schedule_runner.run_schedules, made, weights, x, rows, many)
    _drawn(lambda: run(_marked(mark), *halves), mark, kwargs)


def passes(function: Callable, args: list, kwargs: dict, mark: Mark) -> None:
    """Run ``pipeline_forward``, then ``pipeline_backward``, with a few layers on every stage."""
    from handout import mlp, pipeline_parallel

    layers, rows, width = _sizes(kwargs)
    weights = mlp.init_weights(layers, width)
    x = _random(rows, width) if dist.get_rank() == 0 else None

    def run() -> None:
        with _piece("forward", mark):
            y, saved = function(weights, x, rows, kwargs["micro_batches"])
        with _piece("backward", mark):
            pipeline_parallel.pipeline_backward(weights, saved, y)

    _drawn(run, mark, kwargs)


def zero(zero_class: type, args: list, kwargs: dict, mark: Mark) -> None:
    """Run forward, backward and a step of ``ZeroAdamW``, on this rank's rows."""
    from handout import mlp

    layers, rows, width = _sizes(kwargs)
    weights, x = mlp.init_weights(layers, width), _random(rows, width)
    made = zero_class(weights)

    def run() -> None:
        leaves = [weight.requires_grad_() for weight in map(torch.clone, weights)]
        with _piece("forward", mark):
            loss = mlp.loss(mlp.forward(leaves, x))
        with _piece("backward", mark):
            loss.backward()
        gradients = [leaf.grad for leaf in leaves if leaf.grad is not None]
        made.step(gradients)

    _drawn(run, mark, kwargs)


def fully_sharded(function: Callable, args: list, kwargs: dict, mark: Mark) -> None:
    """Run ``fully_sharded_step``, or ``prefetched_step``, on flat shards of a few layers.

    In both passes, marks record when each layer is computed.
    """
    from handout import mlp

    size, rank = dist.get_world_size(), dist.get_rank()
    layers, rows, width = _sizes(kwargs)
    width -= width % size  # so that no shard has padding
    shards = [w.flatten().chunk(size)[rank].clone() for w in mlp.init_weights(layers, width)]
    x = _random(rows, width)
    passes = {"layer_forward": "forward", "layer_backward": "backward"}
    told = {name: _told(getattr(mlp, name), piece, mark) for name, piece in passes.items()}
    if kwargs["ahead"]:
        _drawn(lambda: function(shards, x, *told.values()), mark, kwargs)
        return
    with ExitStack() as stack:
        for name, layer in told.items():
            stack.enter_context(mock.patch.object(mlp, name, layer))
        _drawn(lambda: function(shards, x), mark, kwargs)


PROGRAMS: dict[str, Callable] = {
    "reduction": reduction,
    "overlap": overlap,
    "timed_calls": timed_calls,
    "data_parallel": data_parallel,
    "buckets": buckets,
    "columns": columns,
    "pairs": pairs,
    "mesh": mesh,
    "ring": ring,
    "experts": experts,
    "pipeline": pipeline,
    "chunks": chunks,
    "passes": passes,
    "zero": zero,
    "fully_sharded": fully_sharded,
}
