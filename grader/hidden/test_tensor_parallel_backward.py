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
    each_of,
    require_products_of_shards,
    require_traffic,
    shapes_of_gradients,
    traffic_problems,
)
from grader.hidden.two_calls import KEPT_A_PART
from grader.hidden.world_sizes import drawn_sizes, has_room, with_more_ranks
from grader.reference import tensor_parallel as parts
from grader.reference.collective_mistakes import OVERWRITTEN
from grader.reference.counting import counted


def backward_runs(world, rng):
    """Run a backward pass of each of several problems. Yield pairs (run, problem).

    The ledger of each run shows the matrix products of the ranks.
    """
    for n, depth in zip(with_more_ranks(world, rng), rng.permutation([4, 5, 6, 8, 10]).tolist()):
        made = [
            (Problem(rng, n, layers=depth, width=3 * n, rows=10), "transpose"),
            (Problem(rng, n, layers=1, width=4 * n, padding=2), "contiguous"),
            (Problem(rng, n, width=4 * n, dtype=np.float32), "slice"),
            (Problem(rng, n, width=4 * n, layers=2, padding=1), MIXED),
            (Problem(rng, n, width=4 * n, rows=1), "contiguous"),
            (Problem(rng, n, rows=n, width=n), "contiguous"),
        ]
        runs = world(n, *(p.backward(layout, driver="metered") for p, layout in made))
        yield from zip(runs, (p for p, _ in made))


@number("4.3")
@weight(1.0)
def test_backward_shards(world, rng):
    """On 1 to 7 ranks, the gradients of the weights are those of a single device, sharded by
    columns; a rank computes with its shards
    """
    for run, p in backward_runs(world, rng):
        run.returns(
            *p.of_ranks(p.gradients),
            tolerance=p.tolerance,
            select=lambda r: driver_results.value(r)[1],
            label="the list of the shards' gradients",
            known_mistakes=lambda: parts.tensor_mistakes(p.weights, p.saved, p.grad_y, p.n)[1],
        )
        run.keeps_inputs()
        layers = len(p.weights)
        if p.n > 1 and layers > 1:
            require_backward_traffic(run, p, padded(p, 2 * layers), of_all_reduces(layers))
        require_products_of_shards(run, p, 2)


@number("4.3")
@weight(1.0)
def test_backward_input(world, rng):
    """On 1 to 7 ranks, the gradient of x is replicated: every rank has the sum over the ranks"""
    for run, p in backward_runs(world, rng):
        run.returns(
            *p.on_all(p.grad_x),
            tolerance=p.tolerance,
            select=lambda r: driver_results.value(r)[0],
            label="the gradient of x",
            known_mistakes=lambda: parts.tensor_mistakes(p.weights, p.saved, p.grad_y, p.n)[0],
        )
        run.keeps_inputs()
        # x's gradient needs at least one sum over the ranks. Another check judges the sums between
        # the layers, which the gradients of the shards need.
        layers = len(p.weights)
        if p.n > 1:
            budget = padded(p, 2 * layers)
            require_backward_traffic(run, p, budget, of_all_reduces(layers), least=layers + 1)
        require_products_of_shards(run, p, 2)


@number("4.3")
@weight(0.5)
@on_gloo
def test_backward_twice(world, rng):
    """A second call of tensor_parallel_backward, with the same tensors and the same or new values,
    returns the right gradients, and does not change the first call's gradients
    """
    (n,) = drawn_sizes(rng)
    name = "tensor_parallel.tensor_parallel_backward"
    pairs = [[Problem(rng, n, dtype=dtype) for _ in range(2)] for dtype in (np.float64, np.float32)]
    requests = [
        call(
            name,
            *(
                per_rank(*((p.shards[r], p.saved_by(r), p.grad_y) for r in range(n)))
                for p in problems
            ),
            driver="refilled",
        )
        for problems in pairs
    ]
    for run, problems in zip(world(n, *requests), pairs):
        expected = [
            [[p.on_all(p.grad_x)[r], *p.of_ranks(p.gradients)[r]] for p in problems]
            for r in range(n)
        ]
        run.returns(
            *expected,
            tolerance=problems[0].tolerance,
            select=lambda r: [[grad_x, *own] for grad_x, own in r],
            label="the list of gradients, [call][0 for x, then 1, 2, … for the shards],",
            known_mistakes=[{OVERWRITTEN: [own[1], own[1]]} for own in expected],
            otherwise=KEPT_A_PART,
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
    # With two layers, the first full gradient may be alive while the second one is computed.
    most = 5 if has_room(world, 5) else 4
    for n, layers in ((int(rng.integers(4, most + 1)), 2), (int(rng.integers(3, 5)), 1)):
        require_no_full_gradient(world, rng, n, layers)


def require_no_full_gradient(world, rng, n, layers):
    """Fail if a backward pass makes a tensor as large as a full weight, and keeps it for a while.

    The weights are much larger than the activations. In addition to the gradients of its shards, a
    rank may have a copy of each shard and one more shard. The bytes of the tensors that are alive
    are counted after each product.
    """
    p = Problem(rng, n, layers, rows=1, width=12 * n * int(rng.integers(3, 5)))
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
            f" gradients of its shards have {layers * shard} bytes together, and the"
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
            layers = len(p.weights)
            require_backward_traffic(run, p, budget(layers), sentence(layers), weights=p.sizes)
            require_products_of_shards(run, p, 2)


def require_backward_traffic(run, p, budget, sentence, least=None, weights=None):
    """Fail if a rank sends too many or too few bytes, or issues too many operations.

    ``budget`` and ``least`` are multiples of the bytes of one reduce-scatter. The default of
    ``least`` is the reduce-scatters between the layers: the shards' gradients need them. Another
    check judges x's gradient, which needs one more sum.
    """
    layers, one = len(p.weights), p.bytes * (p.n - 1) / p.n
    limits = (layers - 1 if least is None else least) * one, budget * one
    require_traffic(run, limits, sentence, weights=weights)
    require_few_operations(run, layers + 1, sentence)


def padded(p, budget):
    """Return the budget for tensors whose rows are padded to a multiple of n.

    The problems of these checks have few rows, so this padding matters.
    """
    rows = len(p.x)
    return budget * -(-rows // p.n) * p.n / rows


def of_all_reduces(layers):
    return f"One all-reduce for {each_of(layers)} is enough."


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
        of_all_reduces,
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
    depths = rng.permutation([3, 3, 4, 5])
    for n, depth in zip((2, 3, 4, 1), depths):
        p = Problem(rng, n, layers=int(depth))
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
