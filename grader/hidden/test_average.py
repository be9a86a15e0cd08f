"""Problem 1.4 · The hidden checks of ``average``, on 1 to 4 ranks.

Comparisons are exact: see ``collective_problem.py``.
"""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check.api import call, on_gloo
from grader.hidden.collective_problem import (
    ALIKE,
    MIXED,
    exact_numbers,
    in_memory_order,
    laid_out,
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
    # contiguous() copies a tensor of the layout ALIKE. With None, the tensor is contiguous, and
    # contiguous() returns the tensor itself.
    tensors = [((64,), layout) for layout in (ALIKE, None)]
    tensors += [((21, 3), MIXED), ((2, 3, 5), ALIKE), ((1, 7), None), ((), None)]
    dtypes = np.float32, np.float64
    given = [(shape, layout, dtype) for dtype in dtypes for shape, layout in tensors]
    for n in SIZES:
        inputs = [[exact_numbers(rng, shape, dtype) for _ in range(n)] for shape, _, dtype in given]
        inputs += [
            [np.array([np.finfo(dtype).smallest_subnormal, 1, 2], dtype)] * n for dtype in dtypes
        ]
        layouts = [layout for _, layout, _ in given] + [None] * len(dtypes)
        requests = [
            call("collectives.average", laid_out(xs, layout)) for xs, layout in zip(inputs, layouts)
        ]
        kept, results = two_calls_of(rng, n, "average", the_average)
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
