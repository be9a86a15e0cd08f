"""Problem 4.3 · The hidden checks of the tensor-parallel backward pass.

They compare the ranks' results with those of a single device in float64.
"""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check import driver_results
from grader.check.api import call, on_gloo, per_rank
from grader.hidden.few_operations import require_few_operations
from grader.hidden.tensor_problem import (
    CLOSE,
    MIXED,
    Problem,
    deal_layers,
    require_products_of_shards,
    require_traffic,
    shapes_of_gradients,
    traffic_problems,
)
from grader.hidden.world_sizes import SIZES, drawn_sizes
from grader.reference import tensor_parallel as parts
from grader.reference.collective_mistakes import OVERWRITTEN
from grader.reference.counting import counted


def backward_runs(world, rng, n):
    """Run a backward pass of each of several problems. Return pairs (run, problem)."""
    made = [
        (Problem(rng, n, layers=4), "transpose"),
        (Problem(rng, n, layers=1, padding=2), "contiguous"),
        (Problem(rng, n, dtype=np.float32), "slice"),
        (Problem(rng, n, layers=2, padding=1), MIXED),
        (Problem(rng, n, rows=1), "contiguous"),
        (Problem(rng, n, rows=n, width=n), "contiguous"),
    ]
    return list(zip(world(n, *(p.backward(layout) for p, layout in made)), (p for p, _ in made)))


@number("4.3")
@weight(1.0)
def test_backward_shards(world, rng):
    """On 1 to 4 ranks, the gradients of the weights are those of a single device, sharded by
    columns
    """
    for n in SIZES:
        for run, p in backward_runs(world, rng, n):
            run.returns(
                *p.of_ranks(p.gradients),
                tolerance=p.tolerance,
                select=lambda r: r[1],
                label="the list of the shards' gradients",
                known_mistakes=lambda: parts.tensor_mistakes(p.weights, p.saved, p.grad_y, n)[1],
            )
            run.keeps_inputs()


@number("4.3")
@weight(1.0)
def test_backward_input(world, rng):
    """On 1 to 4 ranks, the gradient of x is replicated: every rank has the sum over the ranks"""
    for n in SIZES:
        for run, p in backward_runs(world, rng, n):
            run.returns(
                *p.on_all(p.grad_x),
                tolerance=p.tolerance,
                select=lambda r: r[0],
                label="the gradient of x",
                known_mistakes=lambda: parts.tensor_mistakes(p.weights, p.saved, p.grad_y, n)[0],
            )
            run.keeps_inputs()


@number("4.3")
@weight(0.5)
@on_gloo
def test_backward_twice(world, rng):
    """A second call of tensor_parallel_backward, with the same or other tensors, returns the right
    gradients, and does not change the first call's gradients
    """
    (n,) = drawn_sizes(rng)
    first, second = Problem(rng, n), Problem(rng, n)
    both = (
        per_rank(*((p.shards[r], p.saved_by(r), p.grad_y) for r in range(n)))
        for p in (first, second)
    )
    (run,) = world(n, call("tensor_parallel.tensor_parallel_backward", *both, driver="in_turn"))
    expected = [
        [[p.grad_x, *p.of_ranks(p.gradients)[r]] for p in (first, second)] for r in range(n)
    ]
    label = "the list of gradients, [call][0 for x, then 1, 2, … for the shards],"
    run.returns(
        *expected,
        tolerance=CLOSE,
        select=lambda r: [[grad_x, *own] for grad_x, own in r],
        label=label,
        known_mistakes=[{OVERWRITTEN: [own[1], own[1]]} for own in expected],
    )
    p = Problem(rng, n)
    (run,) = world(n, p.backward(driver="twice"))
    doubled = [
        {"the gradients of the second pass were added to those of the first": [2 * g for g in own]}
        for own in p.of_ranks(p.gradients)
    ]
    run.returns(
        *p.of_ranks(p.gradients), tolerance=CLOSE, select=lambda r: r[1][1], known_mistakes=doubled
    )
    run.returns(
        *p.on_all(p.grad_x), tolerance=CLOSE, select=lambda r: r[1][0], label="the gradient of x"
    )


@number("4.3")
@weight(0.5)
def test_gradients_are_no_larger_than_shards(world, rng):
    """The backward pass computes with shards only, and its results keep only the gradients of x and
    of the shards alive
    """
    for n in (2, 3, 4):
        p = Problem(rng, n)
        run, counted_run = world(n, p.backward(driver="described"), p.backward(driver="metered"))
        counted_run.values()
        require_products_of_shards(counted_run, p, 2)
        run.returns(
            *p.of_ranks(p.gradients),
            tolerance=CLOSE,
            select=lambda r: driver_results.value(r)[1],
            label="the list of gradients",
        )
        for rank, kept in enumerate(
            run.read(driver_results.kept_bytes, "the memory that gradients keep alive")
        ):
            shards = [shard.nbytes for shard in p.shards[rank]]
            own = p.x.nbytes + sum(shards)
            # Tensors may be padded a little, or lie in one buffer. But a gradient that is a view of
            # a larger tensor keeps at least the bytes of one more shard alive.
            run.require(
                kept <= own + max(shards) / 2,
                f"rank {rank}'s gradients keep {kept} bytes alive, but only {own} bytes are needed:"
                f" {p.x.nbytes} for x's gradient, and {shards} for the shards' gradients. The"
                f" gradient of a full weight has {p.weights[0].nbytes} bytes. A slice is a view,"
                " which keeps the whole tensor alive. No rank needs a full weight's gradient.",
            )
    require_no_full_gradient(world, rng)


def require_no_full_gradient(world, rng, n=4, layers=2):
    """Fail if a backward pass makes a tensor as large as a full weight, and keeps it for a while.

    The weights are much larger than the activations. In addition to the gradients of its shards, a
    rank may have a copy of each shard and one more shard. The bytes of the tensors that are alive
    are counted after each product.
    """
    p = Problem(rng, n, layers, rows=1, width=128)
    (run,) = world(n, p.backward(driver="metered"))
    run.returns(
        *p.of_ranks(p.gradients),
        tolerance=p.tolerance,
        select=lambda r: driver_results.value(r)[1],
        label="the list of gradients",
    )
    shard, full = p.shards[0][0].nbytes, p.weights[0].nbytes
    for rank in range(n):
        most = max(entry.alive for entry in run.require_products(rank, 1))
        text = (
            f"rank {rank} had {most} bytes of new tensors alive after a matrix product. The"
            f" gradients of its {layers} shards have {layers * shard} bytes together, and the"
            f" gradient of a full weight has {full} bytes. Do you make a tensor as large as a full"
            " weight? No rank needs such a tensor: compute the gradient of the shard itself."
        )
        run.require(most <= (2 * layers + 1.5) * shard + 16 * p.bytes, text)


def backward_traffic(world, rng, budget, sentence):
    """Judge the traffic and the products of a backward pass.

    ``budget`` and ``sentence`` are functions of the number of layers. ``budget`` returns the limit,
    as a multiple of the bytes of one reduce-scatter. ``sentence`` returns the reason.
    """
    for n, depths in deal_layers(rng).items():
        problems = traffic_problems(rng, n, depths)
        label = "the list of the shards' gradients"
        runs = world(n, *(p.backward(driver="metered") for p in problems))
        for run, p in zip(runs, problems):
            run.returns(
                *p.of_ranks(p.gradients),
                tolerance=p.tolerance,
                select=lambda r: driver_results.value(r)[1],
                label=label,
            )
            layers, one = len(p.weights), p.bytes * (n - 1) / n
            # The shards' gradients need at least the reduce-scatters between the layers. Another
            # check judges x's gradient, which needs one more sum.
            limits = (layers - 1) * one, budget(layers) * one
            require_traffic(run, limits, sentence(layers), weights=p.sizes)
            require_few_operations(run, layers + 1, sentence(layers))
            require_products_of_shards(run, p, 2)


@number("4.3")
@weight(1.0)
def test_backward_traffic_of_all_reduces(world, rng):
    """In the backward pass of L layers, a rank computes with its shards, and sends at most the
    bytes of L all-reduces of activations. It sends no weights, and does not send row by row
    """
    backward_traffic(
        world,
        rng,
        lambda layers: 2 * layers,
        lambda layers: f"One all-reduce for each of the {layers} layers is enough.",
    )


@number("4.3")
@weight(1.5)
def test_backward_traffic_of_reduce_scatters(world, rng):
    """In the backward pass of L layers, a rank computes with its shards, and sends at most the
    bytes of L − 1 reduce-scatters and one all-reduce. It sends no weights, and does not send row by
    row
    """

    def sentence(layers):
        return (
            f"{counted(layers - 1, 'reduce-scatter')} between the {layers} layers and one"
            " all-reduce for x's gradient are enough. Between two layers, a rank needs only its own"
            " columns of the sum."
        )

    backward_traffic(world, rng, lambda layers: layers - 1 + 2, sentence)


@number("4.3")
@weight(0.25)
def test_backward_misuse(world, rng):
    """A gradient that does not fit the shards raises ValueError with the numbers"""
    for n in (2, 3, 1):
        p = Problem(rng, n)
        own = per_rank(*(p.saved_by(rank) for rank in range(n)))
        name = "tensor_parallel.tensor_parallel_backward"
        cases = [(shards, p.grad_y, words) for shards, words in p.misfits()]
        cases += [(*given, words) for given, words in p.misfits_of(p.grad_y)]
        runs = world(
            n,
            *(
                call(name, per_rank(*shards), own, grad_y, may_raise=True)
                for shards, grad_y, _ in cases
            ),
        )
        for run, (shards, grad_y, numbers) in zip(runs, cases):
            run.raises_value_error(
                *numbers,
                given=f"a gradient of {grad_y.shape[1]} columns and {shapes_of_gradients(shards)}",
            )
