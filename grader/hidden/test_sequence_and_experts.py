"""Part 9 · Long sequences and many experts: the hidden checks of problem 9.1.

They judge sequence parallelism. They compare the ranks' results with those of a single device in
float64.
"""

from itertools import product

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check import driver_results
from grader.check.api import SETTLED, Tolerance, call, imports_note, on_gloo
from grader.hidden.few_operations import require_few_operations
from grader.hidden.sequence_problem import (
    MODULE,
    PairProblem,
    require_no_copy_of_x,
    require_no_gradient,
    require_traffic,
)
from grader.hidden.two_calls import KEPT_A_PART, in_turn, returns_both
from grader.hidden.world_sizes import SIZES
from grader.reference import sequence_pair

MIB = 2**20
SMALLER = 8  # in the second of two calls, half of the rows of x are divided by this number
# A number of ranks, a dtype, and the bytes of a shard. One of these cases is drawn for the check of
# the memory. A program may keep the gathered rows only on some numbers of ranks, or in half
# precision. In half precision, the rows of all ranks take n/2 shards in float32. In float64 they
# take n/4 shards; one more tensor (T/n, K) is allowed. With larger shards, the hub would hold more
# bytes than it is allowed to hold.
WEIGHED = [
    (4, np.float32, 7 << 18),
    (5, np.float32, 7 << 18),
    (6, np.float32, 19 << 16),
    (5, np.float64, 7 << 18),
]
NEARLY = Tolerance(1e-4, "small rows, whose normalisation is not exact")


def pair_problems(rng, n):
    return [
        PairProblem(rng, n, mixed=True),
        PairProblem(rng, n, rows=1, hidden=3, dtype=np.float32),
        PairProblem(rng, n, rows=4, width=6, hidden=1),
    ]


@number("9.1")
@weight(0.5)
def test_pair_forward(world, rng):
    """sequence_parallel_forward returns the right y and (x, z) on 1 to 4 ranks, in both dtypes, and
    a later call does not change these results
    """
    for n in SIZES:
        problems, other = pair_problems(rng, n), PairProblem(rng, n, rows=4, width=6, hidden=1)
        first = problems[-1]
        *runs, twice, kept = world(
            n,
            *(p.forward() for p in problems),
            first.forward(driver="twice"),
            in_turn(n, first.forward(), other.forward()),
        )
        for run, p in zip(runs, problems):
            p.has_y(run)
            p.has_saved(run, lambda r: r[1])
            run.keeps_inputs()
        first.has_y(twice, lambda r: r[1][0])
        first.has_saved(twice, lambda r: r[1][1])
        what = "(y, (x, z))"
        returns_both(kept, first.results, other.results, what, tolerance=first.tolerance)


@number("9.1")
@weight(0.25)
@on_gloo
def test_pair_saves(world, rng):
    """sequence_parallel_forward saves x itself, in any layout, and this rank's columns of z. It
    keeps no rows of other ranks, and its results require no gradient
    """
    for n in SIZES:
        p = PairProblem(rng, n, rows=4, width=6, hidden=1)
        laid_out = PairProblem(rng, n, rows=4, width=6, hidden=1, mixed=True)
        run, other = world(n, p.forward(driver="saves"), laid_out.forward(driver="saves"))
        p.has_saved(run, lambda r: driver_results.value(r)[1])
        # Judge this before the memory: a result that requires a gradient can keep much memory.
        require_no_gradient(run)
        kept = run.read(driver_results.kept_bytes, "the memory that the results keep alive")
        most = 2 * p.bytes // n + p.saved[0][1].nbytes
        for rank, found in enumerate(kept):
            text = f"rank {rank}'s results keep {found} bytes alive; y, x and z need {most}."
            run.require(found <= most, f"{text} Is one of them a view of a larger tensor?")
        for one in (run, other):
            require_no_copy_of_x(one)


@number("9.1")
@weight(0.5)
def test_pair_backward(world, rng):
    """The gradients of x and of both shards are those of a single device, on 1 to 4 ranks, and a
    later call does not change these gradients
    """
    for n in SIZES:
        problems, first, other = pair_problems(rng, n), PairProblem(rng, n), PairProblem(rng, n)
        both = in_turn(n, first.backward(), other.backward(), driver="refilled")
        *runs, kept = world(n, *(p.backward() for p in problems), both)
        for run, p in zip(runs, problems):
            p.has_gradients(run)
            run.keeps_inputs()
        results = (p.gradients for p in (first, other))
        returns_both(
            kept, *results, "the gradients", tolerance=first.tolerance, otherwise=KEPT_A_PART
        )


@number("9.1")
@weight(0.25)
def test_pair_traffic(world, rng):
    """sequence_parallel_forward sends the bytes of one all-reduce, and sequence_parallel_backward
    sends 1.5 times as many bytes, each with few operations; the results of
    sequence_parallel_backward require no gradient
    """
    # The rows have fewer bytes than the weights, or more.
    shapes = {"rows": 8, "hidden": 20}, {"rows": 40, "hidden": 3}
    dtypes = rng.permutation([np.float64, np.float32, np.float32])
    for (n, dtype), shape in product(zip((2, 3, 4), dtypes), shapes):
        p = PairProblem(rng, n, width=24, dtype=dtype, **shape)
        described = p.backward(driver="described")
        forward, backward, of_backward = world(n, p.forward(), p.backward(), described)
        p.has_y(forward)
        p.has_gradients(backward)
        shard = p.bytes * (n - 1) / n
        sentence = f"One all-gather and one reduce-scatter send {2 * shard:.0f} bytes."
        require_traffic(forward, 2 * shard, sentence, least=2 * shard)
        require_few_operations(forward, 2, "One all-gather and one reduce-scatter are enough.")
        sentence = f"Two all-gathers and one reduce-scatter send {3 * shard:.0f} bytes."
        require_traffic(backward, 3 * shard, sentence, least=3 * shard)
        require_few_operations(backward, 3, "Two all-gathers and one reduce-scatter are enough.")
        require_no_gradient(of_backward)


@number("9.1")
@weight(0.25)
def test_pair_keeps_no_rows(world, rng):
    """Between the forward and the backward pass, a rank's process holds only the rank's own rows"""
    n, dtype, shard = WEIGHED[int(rng.integers(len(WEIGHED)))]
    width = 4096
    rows = shard // (width * np.dtype(dtype).itemsize)
    tiny = PairProblem(rng, n, rows=1, width=4, hidden=1)
    p = PairProblem(rng, n, rows=rows, width=width, hidden=1, dtype=dtype)
    of_tiny, run, rest = world(
        n, tiny.forward(weighs=SETTLED), p.forward(driver="rests"), p.forward_rests()
    )
    of_tiny.values()
    p.has_y(run)
    rest.values()
    for rank in range(n):
        rest.require_grown(rank, shard, "this rank's rows of y")
        grown = rest.grown_since(of_tiny, rank, at_most=1.2 * shard) or 0
        text = (
            f"according to the operating system, rank {rank}'s process holds {grown / MIB:.1f} MiB"
            " more after the forward pass than before it. The rank's rows of y have"
            f" {shard / MIB:.1f} MiB, and z is small. The rows of all ranks have"
            f" {p.bytes / MIB:.1f} MiB. Does something keep the gathered rows? Gather"
            " the rows again in the backward pass, and do not keep them."
        )
        # A right program keeps y and perhaps one more tensor: 2 shards. A program that keeps y and
        # the gathered rows holds at least 5 shards, or 4 without the rank's own rows. At most
        # 1.2 shards are subtracted above. The limit of 2.6 shards and these 1.2 are together less
        # than 4. So a program that keeps the gathered rows fails, even if it took memory for no
        # reason in the first call.
        text += imports_note(of_tiny.own_growth(rank), 1.2 * shard)
        run.require(grown <= 2.6 * shard, text)


@number("9.1")
@weight(0.25)
def test_pair_normalizes_own_rows(world, rng):
    """Each rank normalises its own rows before it sends them; nothing that a rank sends depends on
    the scale of a row of x
    """
    for n in (2, 3, 4):
        p = PairProblem(rng, n, rows=4, width=8, hidden=1)
        # A rank may add x to what it sends. Both scales are so small that this changes the sum of
        # squares only a little.
        scale = rng.uniform(0.002, 0.004)
        # Each shard has rows of two scales, so no single number normalises all of them.
        factors = [rng.permutation([1, 1, 1 / SMALLER, 1 / SMALLER]) for _ in range(n)]
        problems = [p.scaled(scale), p.scaled(scale * np.concatenate(factors)[:, None])]
        runs = world(
            n,
            *(q.forward(squares="float64") for q in problems),
            *(q.backward(squares="float64") for q in problems),
        )
        for run, q in zip(runs, problems):
            q.has_y(run, tolerance=NEARLY)
        for run, q in zip(runs[2:], problems):
            q.has_gradients(run, tolerance=NEARLY)
        for way, large, small in (("forward", *runs[:2]), ("backward", *runs[2:])):
            for rank in range(n):
                require_no_scale(large, small, rank, way)
                for run, q in ((large, problems[0]), (small, problems[1])):
                    require_normalized(run, q, rank, way)


def require_no_scale(run, other, rank, way):
    """Fail if the numbers that a rank sends depend on the scale of the rows of x.

    Half of the rows are smaller in ``other``. For each operation, compare two sums in both runs:
    the sum of the squares, and the sum of the fourth powers, of the numbers that it sends.
    """
    for i, sums in enumerate(zip(run.even_powers(rank), other.even_powers(rank)), 1):
        for name, before, found, slack in zip(("squares", "fourth powers"), *sums, (0.1, 0.2)):
            text = (
                f"rank {rank}, {way}: when half of the rows of x are divided by {SMALLER},"
                f" operation {i} (counted from 1) sends other numbers. The sum of their {name}"
                f" changes from {before:.3g} to {found:.3g}. This sum must not change: normalised"
                " rows do not depend on the scale of a row of x. The products and gradients that"
                " are computed from normalised rows do not depend on this scale, either."
            )
            likely = "Normalise before the all-gather, and call normalize_backward after the sum."
            run.require(abs(found - before) <= slack * max(found, before), f"{text} {likely}")


def require_normalized(run, p, rank, way):
    """Fail unless a rank sends its own normalised rows, in one or several successive operations.

    The order of the numbers does not matter. The rank may send the rows once for each rank. In the
    backward pass it may send the gradients of y together with the rows.
    """
    sent = np.array(run.even_powers(rank)).reshape(-1, 2)
    if not len(sent):  # only the hub measures what is sent
        return
    powers = np.array((2, 4))[:, None, None]
    rows = (sequence_pair.normalize(p.own_x[rank]) ** powers).sum((1, 2))
    grads = (np.split(p.grad_y, p.n)[rank] ** powers).sum((1, 2))
    due = [own * times for own in (rows, rows + grads) for times in range(1, p.n + 1)]
    before = np.concatenate([np.zeros((1, 2)), sent.cumsum(0)])
    in_a_row = [end - begin for i, begin in enumerate(before) for end in before[i + 1 :]]
    text = (
        f"rank {rank}, {way}: no operation sends the rank's {len(p.own_x[rank])} normalised rows."
        f" Expected: the squares of the sent numbers add up to {rows[0]:.4g}, and their fourth"
        f" powers to {rows[1]:.4g}. Found, for each operation:"
        f" {'; '.join(f'{squares:.4g} and {fourth:.4g}' for squares, fourth in sent)}. Send"
        " normalize(x) of this rank's rows. Do not divide x by another number, and do not change"
        " the rows before the all-gather."
    )
    run.require(any(np.allclose(s, d, rtol=1e-3, atol=0) for s in in_a_row for d in due), text)


@number("9.1")
@weight(0.25)
def test_pair_misuse(world, rng):
    """Shards and gradients that do not fit raise ValueError with the numbers"""
    a, b, x = (rng.standard_normal(shape) for shape in ((6, 4), (4, 6), (3, 6)))
    cases = [
        ((a, b), x[:, :5], ("5", "6")),
        ((a, b[:3]), x, ("4", "3")),
        ((a, b[:, :5]), x, ("5", "6")),
    ]
    forward, backward = (
        f"{MODULE}.sequence_parallel_forward",
        f"{MODULE}.sequence_parallel_backward",
    )
    grads = [(x[:2], ("2", "3")), (x[:, :5], ("5", "6"))]
    words = [w for *_, w in cases] * 2 + [w for _, w in grads]
    for n in (1, 2):
        z = rng.standard_normal((3 * n, 4))
        runs = world(
            n,
            *(call(forward, pair, rows, may_raise=True) for pair, rows, _ in cases),
            *(call(backward, pair, (rows, z), x, may_raise=True) for pair, rows, _ in cases),
            *(call(backward, (a, b), (x, z), grad, may_raise=True) for grad, _ in grads),
        )
        for run, numbers in zip(runs, words):
            run.raises_value_error(*numbers)
