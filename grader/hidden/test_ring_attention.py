"""Problem 9.2 · The hidden checks of ring attention.

They compare the ranks' results with those of a single device in float64.
"""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check import driver_results
from grader.check.api import PEAK, SETTLED, call, in_strict_order, on_gloo
from grader.hidden.attention_problem import AttentionProblem
from grader.hidden.large_attention import IMPORTED, LIGHT, LargeAttention
from grader.hidden.sequence_problem import MODULE, require_no_gradient, require_traffic
from grader.hidden.two_calls import KEPT_A_PART, in_turn, returns_both
from grader.hidden.world_sizes import SIZES, drawn_sizes


def attention_problems(rng, n):
    """Return problems of several sizes. The two causal problems differ in dtype, not in size."""
    return [
        AttentionProblem(rng, n, causal=False, rows=4, width=2, mixed=True),
        AttentionProblem(rng, n, causal=True),
        AttentionProblem(rng, n, causal=True, dtype=np.float32, mixed=True),
        AttentionProblem(rng, n, causal=False, rows=2, width=1),
    ]


def one_row(rng, n):
    """Return a problem in which each rank has one row.

    A rank's logsumexp is then a single number. The problem is drawn again while the logsumexp of
    some rank is so near to 0 that only a few of its digits are right.
    """
    while True:
        problem = AttentionProblem(rng, n, causal=True, rows=1, width=3)
        if np.abs(problem.forwarded[1]).min() > 0.01:
            return problem


@number("9.2")
@weight(0.75)
def test_ring_forward(world, rng):
    """ring_attention_forward returns output and logsumexp of full attention (causal or not, 1 to 4
    ranks); a later call does not change these results
    """
    for n in SIZES:
        one = one_row(rng, n)
        problems = [*attention_problems(rng, n), one]
        first, other = problems[1], AttentionProblem(rng, n, causal=True)
        *runs, twice, kept = world(
            n,
            *(p.forward() for p in problems),
            one.forward(driver="twice"),
            in_turn(n, first.forward(), other.forward(), driver="refilled"),
        )
        for run, p in zip(runs, problems):
            p.has_output(run)
            run.keeps_inputs()
        one.has_output(twice, lambda r: r[1])
        what = "(output, logsumexp)"
        results = first.outputs, other.outputs
        returns_both(kept, *results, what, tolerance=first.tolerance, otherwise=KEPT_A_PART)


@number("9.2")
@weight(0.5)
@on_gloo
def test_ring_large_scores(world, rng):
    """Both passes of ring attention are right for large scores, positive and negative, also if the
    largest scores of two queries or two blocks, or of seen and hidden keys, are far apart
    """
    for n in SIZES:
        problems = [
            AttentionProblem(rng, n, causal, width=5, offset=offset)
            for causal, offset in ((False, 3000.0), (True, -3000.0))
        ]
        runs = world(n, *(p.forward() for p in problems), *(p.backward() for p in problems))
        for run, p in zip(runs, problems):
            p.has_output(run)
        for run, p in zip(runs[2:], problems):
            p.has_gradients(run)


@number("9.2")
@weight(1.0)
def test_ring_backward(world, rng):
    """The gradients of queries, keys and values are those of full attention, on 1 to 4 ranks, and a
    later call does not change these gradients
    """
    for n in SIZES:
        problems, other = attention_problems(rng, n), AttentionProblem(rng, n, causal=True)
        first = problems[1]
        *runs, twice, kept = world(
            n,
            *(p.backward() for p in problems),
            first.backward(driver="twice"),
            in_turn(n, first.backward(), other.backward(), driver="refilled"),
        )
        for run, p in zip(runs, problems):
            p.has_gradients(run)
            run.keeps_inputs()
        first.has_gradients(twice, lambda r: r[1])
        what = "(grad_q, grad_k, grad_v)"
        results = first.gradients, other.gradients
        returns_both(kept, *results, what, tolerance=first.tolerance, otherwise=KEPT_A_PART)


@number("9.2")
@weight(0.5)
def test_ring_traffic(world, rng):
    """Only neighbours communicate: keys and values make n − 1 steps in each pass, and their
    gradients make n steps. If causal, a rank may send less, but not less than other ranks need
    """
    for n in (2, 3, 4):
        for causal, dtype in ((False, np.float64), (True, np.float32)):
            p = AttentionProblem(rng, n, causal, rows=8, width=16, dtype=dtype)
            forward, backward = world(n, p.forward(), p.backward())
            p.has_output(forward)
            p.has_gradients(backward)
            because = "Blocks travel around the ring, from each rank to the next rank."
            # In the backward pass, the gradients of a block may start on their way around the ring
            # at the second rank that has the block.
            there, back = (2 * (n - 1), 2 * (n - 1)), (2 * (2 * n - 1), 4 * (n - 1))
            for run, (steps, least) in ((forward, there), (backward, back)):
                run.uses_only("send", "recv", because=because)
                for rank in range(n):
                    for operation in run.operations(rank):
                        towards = 1 if operation.kind == "send" else -1
                        run.require(
                            operation.peer == (rank + towards) % n,
                            f"rank {rank} issued the {operation}. {because}",
                        )
                sentence = f"Send at most {steps} tensors of T/n rows, {p.shard_bytes} bytes each."
                needed = [least] * n
                if causal:
                    needed = [causal_steps(rank, n, run is backward) for rank in range(n)]
                needed = [number * p.shard_bytes for number in needed]
                require_traffic(run, steps * p.shard_bytes, sentence, needed)


def causal_steps(rank, n, is_backward):
    """Return the least number of tensors (T/n, d) that a rank must send if attention is causal.

    A block of keys and values is used by its own rank, and by the queries of later ranks. So the
    last rank passes no keys and values on, and no other rank needs the last rank's block. The
    gradients of every other block must return to the rank of the block. They begin there, or on the
    next rank.
    """
    blocks = rank + 1 if rank < n - 1 else 0  # of keys and values: those of ranks 0 to rank
    if is_backward:
        blocks += n - 1 if rank == n - 1 else n - 2  # of gradients: of the other ranks' blocks
    return 2 * blocks  # one tensor for keys and one for values


# The meter counts a rank's tensors in a call with ``MANY`` ranks. Each tensor (T/n, d) has ``SIDE``
# rows and columns, so it is as large as a block of scores. The vectors (T/n,), which the docstrings
# do not mention, may take as much as one more such tensor.
MANY, SIDE = 8, 16
MOST_ALIVE = {"forward": 5 + 8 + 1, "backward": 5 + 12 + 1}


def require_few_alive(world, rng):
    """Fail if a rank's tensors take more memory than the docstrings allow, in one of the modes.

    A rank that collects all keys and values, or keeps all scores, holds more. The meter sees only
    torch's tensors. But every run gives the same numbers, and a call is so small that both modes
    can be tried.
    """
    problems = [AttentionProblem(rng, MANY, causal, SIDE, SIDE) for causal in (False, True)]
    passes = [(way, p) for p in problems for way in MOST_ALIVE]
    runs = world(MANY, *(getattr(p, way)(driver="metered") for way, p in passes))
    for (way, p), run in zip(passes, runs):
        judge = p.has_output if way == "forward" else p.has_gradients
        judge(run, driver_results.value)
        for rank in range(MANY):
            alive = max((entry.alive for entry in run.ledger(rank)), default=0) / p.block_bytes
            text = (
                f"rank {rank}, {way}, causal={p.causal}, {MANY} ranks: the tensors that your"
                f" function made and still holds are as large as {alive:.1f} tensors (T/n, d). Here"
                " a block of scores, (T/n, T/n), is as large as one such tensor. At most"
                f" {MOST_ALIVE[way]} are allowed. Does a rank collect the keys or the values of all"
                " ranks? Use a block when it arrives, pass it on, and free it. Or did you make a"
                " matrix of the scores of all keys, or keep old blocks?"
            )
            run.require(alive <= MOST_ALIVE[way], text)


# If a rank holds too many tensors, but at most ``FAR`` times the limit, the measurement is
# repeated, up to ``MORE_RUNS`` times. One measurement without too many tensors is enough. A
# submission that collects keys and values holds twice the limit, and fails immediately. Otherwise a
# submission that collects them only in some runs, drawn at random, could pass in a repeated
# measurement.
MORE_RUNS = 2
FAR = 1.5


def measured_again(world, tiny, wide):
    """Measure two problems in new processes. Return both runs. Fail if ``wide`` is wrong."""
    of_tiny, of_wide = world(wide.n, *(p.there_and_back(weighs=SETTLED) for p in (tiny, wide)))
    of_tiny.values()
    wide.has_results(of_wide)
    return of_tiny, of_wide


@number("9.2")
@weight(0.75)
def test_ring_memory(world, rng):
    """A rank's process never holds the keys of all ranks, the values of all ranks, or the scores of
    all keys; no result requires a gradient
    """
    # Judge this first: a result that requires a gradient can be the reason for much memory.
    p = AttentionProblem(rng, *drawn_sizes(rng), causal=bool(rng.integers(2)))
    for run in world(p.n, p.forward(driver="described"), p.backward(driver="described")):
        require_no_gradient(run)
    require_few_alive(world, rng)
    n = 12
    # In ``wide``, the keys and values take the most memory. In ``long``, the scores take the most.
    # To try both problems in both modes would take twice as long. So one mode, drawn at random,
    # gets ``wide``, and the other mode gets ``long``. If one of the two modes collects all keys and
    # keeps all scores, it fails in every draw. The meter sees both modes in every draw.
    is_wide_causal = bool(rng.integers(2))
    wide = LargeAttention(rng, n, int(rng.integers(8, 10)), 6144, causal=is_wide_causal)
    long = LargeAttention(rng, n, int(rng.integers(412, 429)), 2, causal=not is_wide_causal)
    tiny = LargeAttention(rng, n, rows=1, width=2, causal=True)
    of_tiny, of_long, of_wide = world(
        n,
        tiny.there_and_back(weighs=SETTLED),
        long.there_and_back(weighs=PEAK),
        wide.there_and_back(weighs=SETTLED),
    )
    of_tiny.values()
    for problem, run in ((wide, of_wide), (long, of_long)):
        problem.has_results(run)
        steps = 2 * (n - 1) + 2 * (2 * n - 1)
        sentence = f"Send at most {steps} tensors of T/n rows, {problem.shard_bytes} bytes each."
        require_traffic(run, steps * problem.shard_bytes, sentence)
    first, imported = of_tiny, LIGHT
    if not wide.is_light(of_tiny):
        # The number of rows stays the same. With more rows, the hub would hold more bytes than it
        # is allowed to hold: see ``hub.held_bytes``.
        wide = LargeAttention(rng, n, rows=wide.rows, width=2 * 6144, causal=True)
        (first, of_wide), imported = measured_again(world, tiny, wide), IMPORTED
    too_many = wide.hold_too_many(of_wide, first, imported)
    # On a busy machine, more messages than usual may wait on some rank, but hardly in every run.
    for _ in range(MORE_RUNS):
        if too_many and max(too_many)[0] <= FAR:
            first, of_wide = measured_again(world, tiny, wide)
            too_many = wide.hold_too_many(of_wide, first, imported)
    if too_many:
        of_wide.require(False, max(too_many)[1])
    long.has_few_scores(of_long, of_tiny)


@number("9.2")
@weight(0.25)
@in_strict_order
def test_ring_in_strict_order(world, rng):
    """Ring attention works without deadlock if a rank's operations run in order, as on GPUs"""
    for n in (2, 3, 4):
        p = AttentionProblem(rng, n, causal=True)
        forward, backward = world(n, p.forward(), p.backward())
        p.has_output(forward)
        p.has_gradients(backward)


@number("9.2")
@weight(0.25)
def test_ring_misuse(world, rng):
    """Ring attention raises ValueError with the numbers if k, v, output or grad_output does not
    have the shape of q
    """
    right, sums = rng.standard_normal((4, 6)), rng.standard_normal(4)
    # A tensor of one column can be added to, or multiplied by, a tensor of six columns.
    wrong = [
        (rng.standard_normal(shape), numbers)
        for shape, numbers in (
            ((4, 5), ("5", "6")),
            ((4, 1), ("1", "6")),
            ((3, 6), ("3", "4")),
        )
    ]
    forward, backward = f"{MODULE}.ring_attention_forward", f"{MODULE}.ring_attention_backward"
    cases = []
    for bad, numbers in wrong:
        for own in ((bad, right), (right, bad), (bad, bad)):
            cases.append((forward, [right, *own, True], numbers))
        for place in (1, 2, 3, 5):
            given = [right, right, right, right, sums, right, False]
            given[place] = bad
            cases.append((backward, given, numbers))
    for n in (1, 2):
        runs = world(n, *(call(name, *given, may_raise=True) for name, given, _ in cases))
        for run, (_, _, numbers) in zip(runs, cases):
            run.raises_value_error(*numbers)
