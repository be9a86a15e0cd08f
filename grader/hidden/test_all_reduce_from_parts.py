"""Problem 1.3 · The hidden checks of an all-reduce from a reduce-scatter and an all-gather.

The checks run on 1 to 4 ranks. Comparisons are exact: see ``collective_problem.py``.
"""

from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check.api import call, on_gloo
from grader.hidden.collective_problem import (
    dtype_of_size,
    exact_numbers,
    forms,
    in_forms,
    laid_out,
    many,
    some_shape,
    stands_alone,
    sums,
    the_sum,
    two_calls_of,
)
from grader.hidden.world_sizes import SIZES


@number("1.3")
@weight(0.875)
def test_all_reduce_from_parts(world, rng):
    """all_reduce_from_parts returns the sum on 1 to 4 ranks for any shape, dtype and layout, even
    if n does not divide the number of elements
    """
    dtypes = dtype_of_size(rng)
    for n in SIZES:
        shapes = [(8,), (7,), (1,), (2,), (4,), (), (many(rng),)]
        shapes += [some_shape(rng, dimensions) for dimensions in (2, 3, 4)]
        tensors = in_forms(rng, shapes)
        kept = two_calls_of(rng, n, dtypes[n], "all_reduce_from_parts", the_sum)
        sums(world, rng, "collectives.all_reduce_from_parts", n, tensors, kept=kept)


@number("1.3")
@weight(0.5)
def test_built_from_its_parts(world, rng):
    """all_reduce_from_parts makes one reduce-scatter of the padded tensor, and then one all-gather
    of the sums
    """
    function = "collectives.all_reduce_from_parts"
    pairs = iter(forms(rng, 9))
    for n, remainder in ((2, 1), (3, int(rng.integers(1, 3))), (4, 0)):
        length = n * int(rng.integers(2, 5)) + remainder
        shapes = [(length,), some_shape(rng, int(rng.integers(2, 5))), (many(rng),)]
        tensors = [(shape, *next(pairs)) for shape in shapes]
        inputs = [
            [exact_numbers(rng, shape, dtype) for _ in range(n)] for shape, dtype, _ in tensors
        ]
        requests = [
            call(function, laid_out(xs, layout)) for xs, (_, _, layout) in zip(inputs, tensors)
        ]
        runs = world(n, *requests)
        for run, xs in zip(runs, inputs):
            run.returns(*the_sum(xs))
            require_two_parts(run, n, xs[0])


def require_two_parts(run, n, x):
    """Fail unless each rank makes one reduce-scatter of x with its padding, then one all-gather."""
    run.uses_only(
        "reduce_scatter",
        "all_gather",
        because="Build this all-reduce from its two parts.",
    )
    length, padded = x.size, -(-x.size // n) * n
    for rank in range(n):
        kinds = [o.kind for o in run.operations(rank)]
        run.require(
            kinds == ["reduce_scatter", "all_gather"],
            f"rank {rank} called {kinds} instead of one reduce-scatter and then one all-gather.",
        )
        scattering, gathering = run.operations(rank)
        scattered, gathered = scattering.elements, gathering.elements
        run.require(
            length <= scattered <= padded,
            f"rank {rank}'s reduce-scatter got {scattered} elements. The tensor with its padding"
            f" has {padded} elements. Pass all of these to the reduce-scatter. Do not pad further.",
        )
        # A program may gather a view of the bytes. Then count how many elements of x these are.
        of_x = round(gathered * gathering.itemsize / x.itemsize)
        run.require(
            length <= gathered <= padded or length <= of_x <= padded,
            f"the result of rank {rank}'s all-gather has {gathered} elements. The tensor with its"
            f" padding has {padded} elements. Each rank must pass one block to the all-gather: the"
            " block of sums that it got from its reduce-scatter.",
        )


@number("1.3")
@weight(0.125)
@on_gloo
def test_sum_of_parts_requires_no_gradient(world, rng):
    """all_reduce_from_parts returns a new tensor without requires_grad; its input keeps
    requires_grad
    """
    stands_alone(world, rng, "all_reduce_from_parts", the_sum)
