"""Problems 3.1 and 3.2 · The hidden checks of shards of a batch, and of equal parameters."""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check import driver_results
from grader.check.api import Delay, RequiresGrad, Strided, call, mixed, on_gloo, per_rank
from grader.hidden.given_tensors import rank_layout
from grader.hidden.world_sizes import SIZES, drawn_sizes
from grader.reference.data_parallel import OTHER_MEMORY, PASSED_BY, left_out

MEAN = "this is the mean over the ranks. Every rank must get the root's own values"


@number("3.1")
@weight(1.0)
def test_shard_batch(world, rng):
    """shard_batch gives each rank its own rows of a batch of any shape, and the shards together are
    the batch (1 to 4 ranks)
    """
    for n in SIZES:
        batches = [
            rng.standard_normal((3 * n, 5)),
            rng.integers(0, 99, (n, 2, 3)),
            rng.standard_normal(2 * n),
            rng.standard_normal((2 * n, 3)).astype(np.float32),
        ]
        first, *others = batches
        given = [mixed(*[first] * n), *others[:2], Strided(others[2], "slice")]
        for run, batch in zip(
            world(n, *(call("data_parallel.shard_batch", own) for own in given)), batches
        ):
            interleaved = [
                {"every n-th row was taken. Take consecutive rows": batch[r::n]} for r in range(n)
            ]
            run.returns(*np.split(batch, n), known_mistakes=interleaved if n > 1 else None)
            run.keeps_inputs()
            for rank in range(n):
                done = run.operations(rank)
                run.require(
                    not done,
                    f"rank {rank} communicated ({', '.join(map(str, done[:1]))}), although every"
                    " rank already has the whole batch.",
                )


@number("3.1")
@weight(0.5)
def test_shard_batch_misuse(world, rng):
    """shard_batch raises ValueError with both numbers if n does not divide the batch size"""
    for n in (3, 4):
        # fewer rows than ranks, and more than 10
        sizes = [int(rng.integers(1, n)), n * int(rng.integers(4, 50)) + int(rng.integers(1, n))]
        requests = [
            call("data_parallel.shard_batch", rng.standard_normal((rows, 3)), may_raise=True)
            for rows in sizes
        ]
        for run, rows in zip(world(n, *requests), sizes):
            run.raises_value_error(str(rows), str(n))


@number("3.2")
@weight(0.75)
def test_broadcast_parameters(world, rng):
    """broadcast_parameters gives every rank the root's values, for every root of 1 to 4 ranks, any
    shape, dtype and layout
    """
    ways = ("generator", "views", "plain", "plain")  # model.parameters() is a generator
    for n in SIZES:
        more = int(rng.integers(1, 12))
        own = [_parameters(rng, more) for _ in range(n)]
        given = per_rank(
            *([own[rank][0], *_laid_out(own[rank][1:], rank_layout(rank))] for rank in range(n))
        )
        requests = [
            call(
                "data_parallel.broadcast_parameters",
                given,
                driver=ways[root],
                **({"root": root} if root else {}),
            )
            for root in range(n)
        ]
        single = per_rank(*([values[1]] for values in own))
        delays = {n - 1: Delay(until="", on=0, patience=1)} if n > 1 else {}
        requests.append(
            call("data_parallel.broadcast_parameters", single, root=n - 1, delays=delays)
        )
        *runs, last = world(n, *requests)
        for root, run in enumerate(runs):
            _overwrites(run, own, root, ways[root])
        _overwrites(last, [values[1:2] for values in own], n - 1, "plain")


@number("3.2")
@weight(0.25)
@on_gloo
def test_broadcast_replaces_everything(world, rng):
    """broadcast_parameters overwrites any previous values, also infinities and NaN"""
    for n in (2, 3, 4):
        # If the root's values become nan, they were combined with values of other ranks.
        roots, requests = rng.permutation(n)[:2].tolist(), []
        values = rng.standard_normal((2, 3))
        for root in roots:
            of_others = [np.full((2, 3), np.nan if rank == 2 else np.inf) for rank in range(n)]
            given = per_rank(*([values if rank == root else of_others[rank]] for rank in range(n)))
            requests.append(call("data_parallel.broadcast_parameters", given, root=root))
        for root, run in zip(roots, world(n, *requests)):
            _replaces_everything(run, root, values)


def _replaces_everything(run, root, values):
    of_root = run.first_arguments()[root]
    spoiled = isinstance(of_root, list) and all(
        isinstance(v, np.ndarray) and np.isnan(v).any() for v in of_root
    )
    text = (
        "the root's own values became nan. Likely: they were combined with the other ranks'"
        " values, which are inf or nan here. A product with 0 does not remove such values:"
        " inf · 0 and nan · 0 are nan. Send the root's values by a broadcast."
    )
    run.require(not spoiled, text)
    run.leaves_arguments(
        *[[values]] * run.report.size, label="the list of the caller's parameters after the call"
    )


def _parameters(rng, more):
    """Return five parameters of different shapes and dtypes, and ``more`` vectors."""
    return [
        rng.standard_normal(5).astype(np.float32),
        rng.standard_normal((2, 3)),
        np.asarray(rng.standard_normal((3, 2))),
        np.asarray(rng.standard_normal(())),
        rng.standard_normal(4).astype(np.float16),
        *(rng.standard_normal(2) for _ in range(more)),
    ]


def _laid_out(parameters, how):
    """Return the parameters. The two matrices get the memory layout that ``how`` names.

    ``parameters`` is the result of ``_parameters`` without its first tensor: two matrices, a
    scalar, a vector, and more vectors. In the result, the second matrix and the first vector
    require a gradient.
    """
    matrix, other, scalar, vector, *more = parameters
    strided = [Strided(matrix, how), RequiresGrad(Strided(other, how))]
    return [*strided, scalar, RequiresGrad(vector), *more]


def _overwrites(run, own, root, way):
    n, count = len(own), len(own[0])
    views = (
        run.read(driver_results.views, "the parameters")
        if way == "views"
        else run.first_arguments()
    )
    known = []
    frozen = {0, 1, 3, *range(5, count)}
    for rank, mine in enumerate(own):
        strided = {1, 2} if rank_layout(rank) != "contiguous" and count > 1 else set()
        known.append(left_out(views[rank], mine, own[root], frozen, strided))
        if n > 1:
            known[rank][MEAN] = [np.asarray(sum(v) / n, v[0].dtype) for v in zip(*own)]
        if run.marks(rank, "gone through again"):
            known[rank][PASSED_BY] = mine
    label = "the list of the caller's parameters after the call"
    if way == "views":
        run.returns(
            *[own[root]] * n, select=driver_results.views, label=label, known_mistakes=known
        )
        label = "the memory of the caller's parameters"
        known = [{OTHER_MEMORY: mine} for mine in own]
    run.leaves_arguments(*[own[root]] * n, label=label, known_mistakes=known)
    run.keeps_gradient_flags()
    run.returns(*[None] * n, select=driver_results.value if way == "views" else None)


@number("3.2")
@weight(0.25)
def test_broadcast_parameters_misuse(world, rng):
    """A root that is not a rank raises ValueError with the root's number"""
    parameters = [rng.standard_normal(3)]
    for n in (*drawn_sizes(rng), 1):
        roots = (n, n + int(rng.integers(1, 9)), -int(rng.integers(1, 9)))
        requests = [
            call("data_parallel.broadcast_parameters", parameters, root=root, may_raise=True)
            for root in roots
        ]
        for run, root in zip(world(n, *requests), roots):
            run.raises_value_error(str(root), given=f"root={root} on {n} rank{'s' * (n > 1)}")
