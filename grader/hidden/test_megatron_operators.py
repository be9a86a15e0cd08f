"""Problem 4.4 · The hidden checks of the operators f and g, ``CopyToRanks`` and ``SumOverRanks``.

``test_megatron_pair.py`` has the checks of the pair of layers between them.
"""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check import driver_results
from grader.check.api import RequiresGrad, Strided, call, per_rank, rounding
from grader.hidden.tensor_problem import (
    CLOSE,
    MIXED,
    keeps_results,
    laid_out,
    on_ranks,
)
from grader.hidden.world_sizes import SIZES
from grader.reference import tensor_parallel as parts
from grader.reference.counting import often


def added_as_it_lies(partials):
    """Return, for each rank, a dict from the sentence about a mistake to the wrong sum.

    The mistake is to add the entries in the order in which they lie in memory. The sum is wrong
    because the tensors of even ranks are transposed in memory.
    """
    orders = ["C" if rank % 2 else "F" for rank in range(len(partials))]
    total = sum(partial.ravel(order) for partial, order in zip(partials, orders))
    return [{parts.AS_IT_LIES: total.reshape(partials[0].shape, order=order)} for order in orders]


@number("4.4")
@weight(0.75)
def test_copy_to_ranks(world, rng):
    """CopyToRanks (f) returns x unchanged in the forward pass, and sums the ranks' gradients in the
    backward pass, for any shape and layout; a later call does not change an earlier gradient
    """
    for n in SIZES:
        x, upstream = rng.standard_normal((3, 4)), [rng.standard_normal((3, 4)) for _ in range(n)]
        total, wide = sum(upstream), rng.standard_normal((2, 3, 2)).astype(np.float32)
        # The memory layout of these gradients differs between ranks.
        mixed = [own if rank % 2 else Strided(own) for rank, own in enumerate(upstream)]
        row, one = rng.standard_normal((1, 4)), np.array(1.5)
        of_ranks = on_ranks(n, lambda rank: RequiresGrad(laid_out(x, MIXED, rank)))
        name = "tensor_parallel.CopyToRanks"
        runs = world(
            n,
            call(name, RequiresGrad(x), per_rank(*upstream), driver="differentiate"),
            call(name, of_ranks, per_rank(*mixed), driver="differentiate"),
            call(name, RequiresGrad(wide), None, driver="differentiate"),
            call(
                name,
                RequiresGrad(Strided(row, "slice")),
                Strided(row, "slice"),
                driver="differentiate",
            ),
            call(name, RequiresGrad(one), one, driver="differentiate"),
            call(
                name,
                RequiresGrad(Strided(x, "transpose")),
                Strided(x, "transpose"),
                driver="differentiate",
            ),
            call(name, RequiresGrad(Strided(wide, "slice")), wide, driver="differentiate"),
        )
        values = x, x, wide, row, one, x, wide
        gradients = (
            total,
            total,
            np.full_like(wide, n),
            n * row,
            np.asarray(n * one),
            n * x,
            n * wide,
        )
        for run, value, gradient in zip(runs, values, gradients):
            known = (
                [{parts.OWN_PARTIAL: [own]} for own in upstream] if gradient is total else [{}] * n
            )
            if run is runs[1]:
                lie = [
                    {sentence: [wrong] for sentence, wrong in own.items()}
                    for own in added_as_it_lies(upstream)
                ]
                known = [a | b for a, b in zip(known, lie)]
            tolerance = rounding(value.dtype)
            run.returns(
                *[[gradient]] * n,
                tolerance=tolerance,
                select=driver_results.gradients,
                label="x's gradient",
                known_mistakes=known,
            )
            run.returns(*[value] * n, select=driver_results.value, label="f(x)")
        given = upstream, upstream, None, [row] * n, [one] * n, [x] * n, [wide] * n
        for run, own in zip(runs, given):
            if own is not None:  # the driver passed a gradient
                run.returns(
                    *own,
                    select=driver_results.upstream,
                    label="grad_y after the backward pass (it must stay unchanged)",
                )
        for rank in range(n):
            sent = runs[0].issued_before(rank, "backward began")
            text = (
                f"rank {rank} communicated {often(sent)} in f's forward pass. Every rank has x"
                " already, so f returns it as it is, and sends nothing."
            )
            runs[0].require(not sent, text)
        ups = [upstream, [rng.standard_normal((3, 4)) for _ in range(n)]]
        calls = (call(name, RequiresGrad(x), per_rank(*u), driver="differentiate") for u in ups)
        totals = ([sum(own)] for own in ups)
        keeps_results(world, n, *calls, totals, "x's gradients", driver_results.gradients)


@number("4.4")
@weight(0.5)
def test_sum_over_ranks(world, rng):
    """SumOverRanks (g) sums a partial x over the ranks in the forward pass, and leaves the gradient
    as it is in the backward pass, for any shape and layout; a later call does not change an earlier
    sum
    """
    for n in SIZES:
        partials = [rng.standard_normal((3, 4)) for _ in range(n)]
        upstream = rng.standard_normal((3, 4))
        leaves = [
            per_rank(*map(RequiresGrad, partials)),
            # x is not contiguous on the ranks with even numbers
            per_rank(
                *(RequiresGrad(x if rank % 2 else Strided(x)) for rank, x in enumerate(partials))
            ),
        ]
        name, shapes = "tensor_parallel.SumOverRanks", ((), (1, 3), (2, 3, 2), (3, 4))
        layouts = "contiguous", "slice", "transpose", MIXED
        others = [
            [rng.standard_normal(shape).astype(np.float32) for _ in range(n)] for shape in shapes
        ]
        run, strided, flat, *more = world(
            n,
            *(call(name, own, upstream, driver="differentiate") for own in leaves),
            call(
                name,
                per_rank(*(RequiresGrad(t[0]) for t in partials)),
                None,
                driver="differentiate",
            ),
            *(
                call(
                    name,
                    on_ranks(n, lambda rank: RequiresGrad(laid_out(own[rank], layout, rank))),
                    on_ranks(n, lambda rank: laid_out(own[0], layout, rank)),
                    driver="differentiate",
                )
                for own, layout in zip(others, layouts)
            ),
        )
        strided.returns(
            *[sum(partials)] * n,
            tolerance=CLOSE,
            select=driver_results.value,
            label="g(x) of a non-contiguous x",
            known_mistakes=added_as_it_lies(partials),
        )
        for other, own in zip(more, others):
            tolerance = rounding(np.float32)
            other.returns(
                *[np.asarray(sum(own))] * n,
                tolerance=tolerance,
                select=driver_results.value,
                label="g(x)",
            )
            other.returns(*[[own[0]]] * n, select=driver_results.gradients, label="x's gradient")
            other.keeps_inputs()
        run.returns(
            *[sum(partials)] * n, tolerance=CLOSE, select=driver_results.value, label="g(x)"
        )
        again = {
            (
                "the gradient was summed over the ranks in the backward pass. It is"
                " replicated: every rank already has the complete gradient"
            ): [n * upstream]
        }
        run.returns(
            *[[upstream]] * n,
            tolerance=CLOSE,
            select=driver_results.gradients,
            label="x's gradient",
            known_mistakes=[again if n > 1 else {}] * n,
        )
        run.keeps_inputs()
        for rank in range(n):
            after = len(run.operations(rank)) - run.issued_before(rank, "backward began")
            text = (
                f"rank {rank} communicated {often(after)} in g's backward pass. Every rank has the"
                " complete gradient already, so this pass returns it unchanged, and sends nothing."
            )
            run.require(not after, text)
        xs = [partials, [rng.standard_normal((3, 4)) for _ in range(n)]]
        calls = (
            call(name, per_rank(*map(RequiresGrad, own)), upstream, driver="differentiate")
            for own in xs
        )
        keeps_results(world, n, *calls, map(sum, xs), "sums g(x)", driver_results.value)
        flat.returns(
            *[[np.ones(4)]] * n,
            tolerance=CLOSE,
            select=driver_results.gradients,
            label="x's gradient",
        )


@number("4.4")
@weight(0.25)
def test_f_and_g_keep_nothing(world, rng):
    """CopyToRanks (f) and SumOverRanks (g) save no tensor for their backward passes: the input is
    freed when nothing else needs it
    """
    for n in SIZES:
        shapes = (
            ((3, 4), np.float64),
            ((5, 2), np.float32),
            ((2, 3, 2), np.float64),
            ((4,), np.float32),
        )
        given = [
            [rng.standard_normal(shape).astype(dtype) for _ in range(n)] for shape, dtype in shapes
        ]
        runs = world(
            n,
            *(
                call(
                    "tensor_parallel.SumOverRanks",
                    per_rank(*map(RequiresGrad, partials)),
                    driver="apply_and_drop",
                )
                for partials in given
            ),
            *(
                call("tensor_parallel.CopyToRanks", RequiresGrad(x), driver="apply_and_drop")
                for x, *_ in given  # replicated
            ),
        )
        for of_g, of_f, partials in zip(runs, runs[len(given) :], given):
            x = partials[0]
            of_g.returns(
                *[sum(partials)] * n,
                tolerance=rounding(x.dtype),
                select=driver_results.value,
                label="g(x)",
            )
            require_nothing_kept(of_g, "the partial input", x.nbytes)
            require_nothing_kept(of_f, "the input", x.nbytes)


def require_nothing_kept(run, what, size):
    """Fail if f or g keeps its input of ``size`` bytes, or a copy of it, for its backward pass."""
    for rank, kept in enumerate(
        run.read(driver_results.is_argument_kept, "the record of whether the input is in memory")
    ):
        text = (
            f"{what} of rank {rank} is still in memory after the forward pass. Does ctx keep this"
            " input, or a view of it? The backward pass needs neither: save nothing."
        )
        run.require(not kept, text)
    for rank, beside in enumerate(
        run.read(driver_results.bytes_beside, "the memory that the forward pass leaves")
    ):
        text = (
            f"rank {rank}'s forward pass keeps {beside} bytes of tensors alive besides its output;"
            f" {what} has {size} bytes. Does ctx keep a copy of the input? The backward pass needs"
            " no copy: save nothing."
        )
        run.require(beside <= 0, text)
