"""Problem 1.4 · The hidden checks of ``average``, on 1 to 4 ranks.

Comparisons are exact: see ``collective_problem.py``.
"""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check.api import call, on_gloo
from grader.hidden.collective_problem import (
    FLOATS,
    dtype_of_size,
    exact_numbers,
    in_forms,
    in_memory_order,
    laid_out,
    many,
    some_shape,
    stands_alone,
    two_calls_of,
)
from grader.hidden.two_calls import returns_both
from grader.hidden.world_sizes import SIZES
from grader.reference import collective_mistakes as mistakes
from grader.reference import collectives as truth

BEFORE = (
    "the values were divided by n before the sum, so n quotients were rounded. Sum first, then"
    " divide the sum once"
)


@number("1.4")
@weight(0.375)
def test_average_is_exact(world, rng):
    """average computes the sum, then divides it once by n, without ReduceOp.AVG (1 to 4 ranks)"""
    dtypes = dtype_of_size(rng, FLOATS)
    for n in SIZES:
        # An odd number of shapes, twice: ``forms`` gives each shape both dtypes.
        shapes = [(64,), (21, 3), (1, 7), (), some_shape(rng, 3), some_shape(rng, 4), (many(rng),)]
        given = in_forms(rng, shapes * 2, FLOATS)
        inputs = [[exact_numbers(rng, shape, dtype) for _ in range(n)] for shape, dtype, _ in given]
        inputs += [
            [np.array([np.finfo(dtype).smallest_subnormal, 1, 2], dtype)] * n for dtype in FLOATS
        ]
        layouts = [layout for _, _, layout in given] + [None] * len(FLOATS)
        requests = [
            call("collectives.average", laid_out(xs, layout)) for xs, layout in zip(inputs, layouts)
        ]
        kept, results = two_calls_of(rng, n, dtypes[n], "average", the_average)
        *runs, last = world(n, *requests, kept)
        for run, xs, layout in zip(runs, inputs, layouts):
            reciprocal = mistakes.reciprocal(truth.reduction(xs, "sum"), n)
            known = [
                {mistakes.RECIPROCAL: reciprocal, BEFORE: sum(x / n for x in xs)} for _ in range(n)
            ]
            if layout:
                known = [
                    one | more for one, more in zip(known, in_memory_order(xs, layout, the_average))
                ]
            run.returns(*the_average(xs), known_mistakes=known)
            run.keeps_inputs()
            for rank in range(n):
                used = [o.reduction for o in run.operations(rank)]
                run.require(
                    "average" not in used,
                    f"rank {rank} used ReduceOp.AVG, which some backends do not have. Use"
                    " ReduceOp.SUM, then divide the sum by n.",
                )
        returns_both(last, *results)


def the_average(xs):
    return truth.all_reduce(xs, "average")


@number("1.4")
@weight(0.25)
def test_average_of_integers(world, rng):
    """average raises ValueError with the dtype if the tensor has an integer dtype"""
    for n in (1, 3):
        (run,) = world(
            n, call("collectives.average", exact_numbers(rng, (4,), np.int64), may_raise=True)
        )
        run.raises_value_error("int64")


@number("1.4")
@weight(0.125)
@on_gloo
def test_average_requires_no_gradient(world, rng):
    """average returns a new tensor without requires_grad; its input keeps requires_grad"""
    stands_alone(world, rng, "average", the_average)
