"""Problem 1.5 · The hidden checks of an all-reduce that runs while the rank computes.

The checks run on 1 to 4 ranks. Comparisons are exact: see ``collective_problem.py``.
"""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check.api import Delay, Probe, call, listed, on_gloo, per_rank
from grader.hidden.collective_problem import (
    DTYPES,
    dtype_of_size,
    exact_numbers,
    forms,
    in_forms,
    in_memory_order,
    laid_out,
    many,
    some_shape,
    stands_alone,
    the_sum,
    two_calls_of,
)
from grader.hidden.two_calls import returns_both
from grader.hidden.world_sizes import SIZES


@number("1.5")
@weight(0.875)
def test_compute_does_not_wait(world, rng):
    """overlapped_all_reduce calls compute while the all-reduce is running, even if other ranks have
    not begun
    """
    pairs = iter(forms(rng, 9))
    for n in (2, 3, 4):
        # In each call, another rank is early. One tensor is a vector, one has two or three
        # dimensions, and one (of three or four) is large.
        shapes = [(5,), some_shape(rng, int(rng.integers(2, 4))), (many(rng),), some_shape(rng, 4)]
        tensors = [(shapes[i], *next(pairs)) for i in rng.permutation(n)]
        inputs = [
            [exact_numbers(rng, shape, dtype) for _ in range(n)] for shape, dtype, _ in tensors
        ]
        requests = []
        for early, (xs, (_, _, layout)) in enumerate(zip(inputs, tensors)):
            # All other ranks begin only after the early rank's compute has ended. If the early rank
            # waits for the other ranks before or in compute, its compute never ends.
            delays = {
                rank: Delay(until="compute ended", on=early) for rank in range(n) if rank != early
            }
            requests.append(
                call(
                    "collectives.overlapped_all_reduce",
                    laid_out(xs, layout),
                    Probe("compute", 7),
                    delays=delays,
                )
            )
        for run, xs in zip(world(n, *requests), inputs):
            run.returns(
                *((total, 7) for total in the_sum(xs)),
                label="the result ([0]: the sum, [1]: the result of compute)",
            )
            run.waits_for_nobody(
                "the ranks waited for each other before compute began, so nothing overlaps."
                " Call compute before wait(), and before dist.new_group(), which also waits for"
                " all ranks."
            )
            for rank in range(n):
                began = run.marks(rank, "compute began")
                run.require(
                    len(began) == 1,
                    f"rank {rank} called compute {len(began)} times instead of once.",
                )
                done = run.operations(rank)
                started = [o for o in done if o.kind == "all_reduce" and o.traffic > 0]
                before = [o for o in done if o.at < began[0].at and o.traffic > 0]
                sentence = (
                    f"rank {rank} began to compute before it had started an all-reduce, so the"
                    " all-reduce does not overlap with compute."
                )
                if before:
                    sentence += f" Before that, it had started: {listed(before)}."
                run.require(bool(started) and started[0].at <= began[0].at, sentence)
                early = sum(o.bytes * _narrowed(o, xs[0]) for o in before if o.kind == "all_reduce")
                sentence = (
                    f"Before rank {rank} began to compute, it had started only: {listed(before)}."
                    f" But the tensor has {xs[0].nbytes} bytes. Start the all-reduce of the whole"
                    " tensor before you call compute."
                )
                run.require(early >= xs[0].nbytes, sentence)
                sent = sum(o.traffic * _narrowed(o, xs[0]) for o in done)
                enough = 2 * (n - 1) / n * xs[0].nbytes
                sentence = (
                    f"rank {rank} sends {sent:.0f} bytes ({listed(done)}), but {enough:.0f} are"
                    " enough for the all-reduce of this tensor. Start one all-reduce, and no other"
                    " communication."
                )
                run.require(sent <= enough + 0.5, sentence)


def _narrowed(operation, x):
    """Return the factor by which an operation's bytes shrink if they are sent in the dtype of x.

    A program may add in a wider dtype. Its bytes are then counted as if it used the dtype of x.
    """
    return min(1.0, x.itemsize / operation.itemsize) if operation.bytes else 1.0


@number("1.5")
@weight(0.375)
def test_it_waits_before_it_returns(world, rng):
    """overlapped_all_reduce does not change its input, and returns the complete sum, even on a
    rank that is far ahead of the other ranks
    """
    dtypes = dtype_of_size(rng)
    function, compute = "collectives.overlapped_all_reduce", Probe("compute", "done")
    for n in SIZES:
        # In the first of these calls, all ranks but rank 0 begin late.
        shapes = [some_shape(rng, 2), (5,), (1, 4), some_shape(rng, 3), (), (many(rng),)]
        tensors = in_forms(rng, shapes)
        inputs = [
            [exact_numbers(rng, shape, dtype) for _ in range(n)] for shape, dtype, _ in tensors
        ]
        late = {rank: Delay(until="call began", on=0, then=0.15) for rank in range(1, n)}
        requests = [
            call(function, laid_out(xs, layout), compute, delays={} if i else late)
            for i, (xs, (_, _, layout)) in enumerate(zip(inputs, tensors))
        ]
        kept, results = two_calls_of(
            rng, n, dtypes[n], "overlapped_all_reduce", _with_done, compute
        )
        *runs, last = world(n, *requests, kept)
        for run, xs, (_, _, layout) in zip(runs, inputs, tensors):
            known = in_memory_order(xs, layout, the_sum) if layout else [{}] * n
            known = [
                {name: (total, "done") for name, total in of_rank.items()} for of_rank in known
            ]
            run.returns(*_with_done(xs), known_mistakes=known)
            run.keeps_inputs()
        returns_both(last, *results)


def _with_done(xs):
    return [(total, "done") for total in the_sum(xs)]


@number("1.5")
@weight(0.125)
def test_compute_may_read(world, rng):
    """The input keeps its values during the all-reduce, so compute can read it"""
    for n in (2, int(rng.choice([3, 4]))):
        require_input_kept(world, rng, n)


def require_input_kept(world, rng, n):
    """Fail if compute does not read the input's own values on rank 0 of n."""
    # A contiguous tensor can itself be the buffer of an all-reduce.
    shapes = [(5,), some_shape(rng, int(rng.integers(2, 5))), (many(rng),)]
    inputs = [
        [exact_numbers(rng, shapes[i], dtype) for _ in range(n)]
        for i, dtype in zip(rng.permutation(3), DTYPES)
    ]
    # Rank 0 reads its input only after rank 1 has the sum. By this time, an all-reduce that uses
    # rank 0's input as its buffer has overwritten this input.
    delays = {0: Delay(until="call ended", on=1, at="compute reads", then=0.1, patience=1)}
    requests = [
        call(
            "collectives.overlapped_all_reduce",
            per_rank(*xs),
            driver="read_while_computing",
            delays=delays,
        )
        for xs in inputs
    ]
    lent = (
        "`compute` read the sum instead of the input, because the all-reduce overwrote the"
        " caller's tensor. Start the all-reduce on a copy."
    )
    in_use = (
        "`compute` read the tensor while the all-reduce was using it. If the all-reduce works in"
        " the caller's tensor, start it on a copy."
    )
    for run, xs in zip(world(n, *requests), inputs):
        total = the_sum(xs)[0]
        known = [{lent: (total, total)} for _ in xs]
        if total.dtype.kind == "f":  # integers have no NaN, which marks memory that is in use
            for mistakes, x in zip(known, xs):
                mistakes[in_use] = (total, np.full_like(x, np.nan))
        run.returns(*((total, x) for x in xs), known_mistakes=known)


@number("1.5")
@weight(0.125)
@on_gloo
def test_overlapped_sum_requires_no_gradient(world, rng):
    """overlapped_all_reduce returns a new tensor without requires_grad; its input keeps
    requires_grad
    """
    stands_alone(world, rng, "overlapped_all_reduce", _with_done, Probe("compute", "done"))
