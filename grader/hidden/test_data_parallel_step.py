"""Problem 3.3 · The hidden checks of one step of data parallelism.

They compare the ranks' results with those of a single device in float64.
"""

from functools import partial

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check.api import Strided, call, listed, mixed, on_gloo, per_rank, rounding
from grader.hidden.data_parallel_problem import (
    averages_own_gradients,
    cast,
    late,
    many_rows,
    memory_orders,
    problem,
)
from grader.hidden.given_tensors import rank_layout
from grader.hidden.two_calls import in_turn
from grader.hidden.world_sizes import SIZES
from grader.reference import single_device
from grader.reference.collective_mistakes import STALE
from grader.reference.data_parallel import (
    LOSS_DIVIDED,
    loss_mistakes,
    output_saved_mistakes,
    require_average,
    step_mistakes,
)

OVERWRITTEN = (
    "the second step overwrote the gradients of the first step. Return new tensors from each step"
)


def step_problems(rng, n):
    """Return problems of several sizes, and their calls.

    In the first problem, the memory layout of tensors differs from rank to rank, and all ranks
    except rank 0 begin late. The shards are much larger than the gradients in the first problem,
    and much smaller in the last problem: see ``averages_own_gradients``. One of the
    problems has 4 to 6 layers. ``test_step_traffic`` may draw the same widths, except 1.
    """
    few, middle, many = int(rng.integers(1, 3)), 3, int(rng.integers(4, 7))
    first, *others = ((few + 1, middle, many), (middle, many, few), (many, few, middle))[
        rng.integers(3)
    ]
    rows, width = int(rng.integers(2, 8)), int(rng.choice((6, 12)))
    problems = [
        problem(rng, n, layers=first, rows=many_rows(first)),
        problem(rng, n, layers=others[0], width=width, rows=rows, dtype=np.float32),
        problem(rng, n, layers=1, width=1, rows=1),  # the example in the docstring of the stub
        problem(rng, n, layers=others[1], rows=1),
    ]
    weights, _, shards = problems[0]
    given = per_rank(*([Strided(w, rank_layout(rank)) for w in weights] for rank in range(n)))
    requests = [call("data_parallel.data_parallel_step", given, mixed(*shards), delays=late(n))]
    for weights, _, shards in problems[1:]:
        requests.append(call("data_parallel.data_parallel_step", weights, per_rank(*shards)))
    return problems, requests


@number("3.3")
@weight(3.0)
def test_step_gradients(world, rng):
    """data_parallel_step returns the gradients of the whole batch on 1 to 4 ranks, in float32 and
    float64, also in a second step
    """
    for n in SIZES:
        problems, requests = step_problems(rng, n)
        weights, _, shards = problems[-1]
        again = call("data_parallel.data_parallel_step", weights, per_rank(*shards), driver="twice")
        steps, in_place = _steps_in_place(rng, n, like=problems[1][0])
        *runs, twice, anew = world(n, *requests, again, in_place)
        # Only in the first problem, layouts differ from rank to rank.
        orders_of_problems = [memory_orders(n)] + [()] * (len(problems) - 1)
        for run, (weights, batch, shards), orders in zip(runs, problems, orders_of_problems):
            gradients = cast(single_device.loss_and_gradients(weights, batch)[1], batch.dtype)
            run.returns(
                *[gradients] * n,
                tolerance=rounding(batch.dtype),
                select=lambda r: r[1],
                label="the list of gradients",
                known_mistakes=partial(_of_step, weights, shards, gradients, orders),
            )
            averages_own_gradients(run, weights, shards[:1])
            run.keeps_inputs()
        _does_not_accumulate(twice, gradients, n)
        _computes_anew(anew, steps)


def _steps_in_place(rng, n, like):
    """Return the problems of two steps, and a request that makes both steps with the same tensors.

    Between the two steps, the values of these tensors change in place. The weights have the shapes
    of the weights ``like``, which have another dtype.
    """
    sizes = {"layers": len(like), "width": len(like[0]), "rows": int(rng.integers(1, 7))}
    steps = [problem(rng, n, **sizes) for _ in range(2)]
    requests = [
        call("data_parallel.data_parallel_step", weights, per_rank(*shards))
        for weights, _, shards in steps
    ]
    return steps, in_turn(n, *requests, driver="refilled")


def _computes_anew(run, steps):
    """Fail if a second step changes the gradients of a first step, or depends on that step."""
    n = run.report.size
    first, later = (
        cast(single_device.loss_and_gradients(weights, batch)[1], np.float64)
        for weights, batch, _ in steps
    )
    run.returns(
        *[[first, later]] * n,
        tolerance=rounding(np.float64),
        select=lambda r: [own[1] for own in r],
        label="the list of the gradients of two steps, read after both steps, [step][layer],",
        known_mistakes=[{OVERWRITTEN: [later, later], STALE: [first, first]}] * n,
    )


def _of_step(weights, shards, gradients, orders):
    local = [
        cast(single_device.loss_and_gradients(weights, shard)[1], shard.dtype) for shard in shards
    ]
    means = loss_mistakes(gradients, *shards[0].shape)
    means |= output_saved_mistakes(weights, shards)
    return [own | means for own in step_mistakes(local, orders)]


def _does_not_accumulate(run, gradients, n):
    """Fail if a second step with the same weight tensors adds to the first step's gradients."""
    run.returns(
        *[gradients] * n,
        tolerance=rounding(np.float64),
        select=lambda r: r[1][1],
        label="the list of gradients of a second step with the same weights",
        known_mistakes=[
            {
                "the gradients of the second step were added to those of the first step": [
                    2 * g for g in gradients
                ],
                (
                    "the gradients of the second step were added to the sum over the ranks of the"
                    " gradients of the first step"
                ): [(n + 1) * g for g in gradients],
            }
        ]
        * n,
    )


@number("3.3")
@weight(1.0)
@on_gloo
def test_step_loss_is_local(world, rng):
    """data_parallel_step returns the loss of each rank's own shard, and the mean of these losses is
    the loss of the whole batch
    """
    for n in SIZES:
        problems, requests = step_problems(rng, n)
        for run, (weights, batch, shards) in zip(world(n, *requests), problems):
            local = [
                np.array(single_device.loss_and_gradients(weights, shard)[0], batch.dtype)
                for shard in shards
            ]
            whole = np.array(single_device.loss_and_gradients(weights, batch)[0])
            averaged = (
                {"this is the loss of the whole batch. Return the local loss": whole}
                if n > 1
                else {}
            )
            known = [loss_mistakes([own], *shards[0].shape) for own in local]
            run.returns(
                *local,
                tolerance=rounding(batch.dtype),
                select=lambda r: r[0],
                label="the local loss",
                known_mistakes=[
                    averaged
                    | ({LOSS_DIVIDED: np.asarray(loss / n)} if n > 1 else {})
                    | {sentence: own for sentence, (own,) in means.items()}
                    for loss, means in zip(local, known)
                ],
            )


@number("3.3")
@weight(0.5)
def test_step_traffic(world, rng):
    """For weights and shards of any size, each rank computes only with its own rows, and sends only
    the bytes of one all-reduce of each gradient
    """
    for n in (2, 3, 4):
        # A shard has from 1/240 to more than three times as many bytes as all gradients together.
        # Gradients of width 48 are so large that ranks can exchange them only by messages, and not
        # by a side channel, such as the number of threads that a rank starts. The number of a
        # gradient's entries is divisible by 12 and so by n, so no algorithm has to pad a gradient.
        rows = (320, 1, int(rng.integers(8, 80)), int(rng.integers(2, 8)))
        widths = (48, 48, *(6 * rng.integers(1, 8, 2)).tolist())
        layers = rng.permutation([2, 3, 4, 5]).tolist()
        # A rank must not send float32 gradients as float64.
        dtypes = rng.permutation([np.float32, np.float32, np.float64, np.float64])
        problems = [problem(rng, n, *sizes) for sizes in zip(layers, widths, rows, dtypes)]
        requests = [
            call("data_parallel.data_parallel_step", weights, per_rank(*shards), driver=driver)
            for weights, _, shards in problems
            for driver in ("plain", "metered")
        ]
        runs = world(n, *requests)
        for run, metered, (weights, batch, shards) in zip(runs[::2], runs[1::2], problems):
            gradients = cast(single_device.loss_and_gradients(weights, batch)[1], batch.dtype)
            run.returns(
                *[gradients] * n,
                tolerance=rounding(batch.dtype),
                select=lambda r: r[1],
                label="the list of the weights' gradients",
            )
            size = sum(w.nbytes for w in weights)
            for own in (run, metered):
                require_average(own, size)
                _sends_only_gradients(own, size, shards[0])
            _computes_with_own_rows(metered, weights, shards[0])


def _sends_only_gradients(run, size, shard):
    """Fail if a rank sends more bytes than an average of gradients of ``size`` bytes takes."""
    n = run.report.size
    for rank in range(n):
        done = [o for o in run.operations(rank) if o.kind != "recv"]
        sent = sum(o.traffic for o in done)
        run.require_communication(rank, sent > 0)
        allowed = 2 * (n - 1) / n * size
        sentence = (
            f"rank {rank} sends {sent:.0f} bytes: {listed(done)}. The gradients"
            f" together have {size} bytes, so {allowed:.0f} are enough. (The rank's shard of the"
            f" batch has {shard.nbytes} bytes.) Send only the gradients: no rows, weights,"
            " activations or losses. Send them in the dtype of the weights."
        )
        if any(o.kind in ("all_gather", "gather") for o in done):
            sentence += (
                " If each rank gets the gradients of all other ranks, this takes (n−1) times the"
                " bytes of the gradients. Reduce them instead."
            )
        # Thirds of bytes do not add up exactly.
        run.require(sent < allowed + 0.5, sentence)


def _computes_with_own_rows(run, weights, shard):
    """Fail if a rank computes twice the products that its own rows take, or too few products.

    The gradients of the whole batch take n times the products of a rank's own rows. A rank may
    compute almost twice the products of its own rows: even a program that runs its forward pass
    three times stays below the limit. The call's driver must be ``metered``. The meter sees only
    torch's products, so a program that multiplies elsewhere could exceed the limit.
    """
    n, product = run.report.size, 2 * len(shard) * weights[0].size
    # For each layer there are one product forward and two backward. The gradient of the batch is
    # not needed.
    needed = (3 * len(weights) - 1) * product
    for rank in range(n):
        # Each layer needs a product forward, and a product for its weight's gradient.
        products = run.require_products(rank, 2 * len(weights) * product)
        done = sum(entry.amount for entry in products)
        sentence = (
            f"rank {rank} computed products of matrices with {done} floating-point operations. The"
            f" gradients of its own {len(shard)} rows take {needed}, and those of all"
            f" {n * len(shard)} rows take {n * needed}. Likely: the rank computes with the rows of"
            " other ranks, too. Compute only the gradients of the rank's own shard. Then average"
            " them."
        )
        run.require(done < 2 * needed, sentence)
