"""Part 9 · Long sequences and many experts: the hidden checks.

They compare the ranks' results with those of a single device in float64.
"""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check import driver_results
from grader.check.api import (
    EMPTY_BYTES,
    PEAK,
    SETTLED,
    Tolerance,
    call,
    imports_note,
    in_strict_order,
    on_gloo,
    per_rank,
)
from grader.hidden.few_operations import require_few_operations
from grader.hidden.large_attention import IMPORTED, LIGHT, LargeAttention
from grader.hidden.sequence_problem import (
    MODULE,
    AttentionProblem,
    ExpertProblem,
    PairProblem,
    require_no_gradient,
    require_traffic,
)
from grader.hidden.two_calls import in_turn, returns_both
from grader.reference import experts, sequences

SIZES = (1, 2, 3, 4)
MIB = 2**20
SMALLER = 8  # in the second of two calls, half of the rows of x are divided by this number
NEARLY = Tolerance(1e-4, "small rows, whose normalisation is not exact")


# ——— 9.1


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
    """sequence_parallel_forward saves this rank's rows of x and columns of z, and does not keep all
    rows of x; its results require no gradient
    """
    for n in SIZES:
        p = PairProblem(rng, n, rows=4, width=6, hidden=1)
        (run,) = world(n, p.forward(driver="described"))
        p.has_saved(run, lambda r: driver_results.value(r)[1])
        # Judge this before the memory: a result that requires a gradient can keep much memory.
        require_no_gradient(run)
        kept = run.read(driver_results.kept_bytes, "the memory that the results keep alive")
        most = 2 * p.bytes // n + p.saved[0][1].nbytes
        for rank, found in enumerate(kept):
            text = f"rank {rank}'s results keep {found} bytes alive; y, x and z need {most}."
            run.require(found <= most, f"{text} Is one of them a view of a larger tensor?")


@number("9.1")
@weight(0.5)
def test_pair_backward(world, rng):
    """The gradients of x and of both shards are those of a single device, on 1 to 4 ranks"""
    for n in SIZES:
        problems, first, other = pair_problems(rng, n), PairProblem(rng, n), PairProblem(rng, n)
        both = in_turn(n, first.backward(), other.backward())
        *runs, kept = world(n, *(p.backward() for p in problems), both)
        for run, p in zip(runs, problems):
            p.has_gradients(run)
            run.keeps_inputs()
        results = (p.gradients for p in (first, other))
        returns_both(kept, *results, "the gradients", tolerance=first.tolerance)


@number("9.1")
@weight(0.25)
def test_pair_traffic(world, rng):
    """sequence_parallel_forward sends the bytes of one all-reduce, and sequence_parallel_backward
    sends 1.5 times as many bytes; the results of sequence_parallel_backward require no gradient
    """
    for n, dtype in ((2, np.float64), (4, np.float32)):
        p = PairProblem(rng, n, rows=8, width=24, hidden=20, dtype=dtype)
        described = p.backward(driver="described")
        forward, backward, of_backward = world(n, p.forward(), p.backward(), described)
        p.has_y(forward)
        p.has_gradients(backward)
        shard = p.bytes * (n - 1) / n
        sentence = f"One all-gather and one reduce-scatter send {2 * shard:.0f} bytes."
        require_traffic(forward, 2 * shard, sentence, least=2 * shard)
        sentence = f"Two all-gathers and one reduce-scatter send {3 * shard:.0f} bytes."
        require_traffic(backward, 3 * shard, sentence, least=3 * shard)
        require_no_gradient(of_backward)


@number("9.1")
@weight(0.25)
def test_pair_keeps_no_rows(world, rng):
    """Between the forward and the backward pass, a rank's process holds only the rank's own rows"""
    n = 4
    tiny = PairProblem(rng, n, rows=1, width=4, hidden=1)
    p = PairProblem(rng, n, rows=56, width=4096, hidden=1)
    of_tiny, run, rest = world(
        n, tiny.forward(weighs=SETTLED), p.forward(driver="rests"), p.forward_rests()
    )
    of_tiny.values()
    p.has_y(run)
    rest.values()
    shard = p.bytes // n
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
        # the gathered rows holds 5 shards, or 4 if it does not gather the rank's own rows. At most
        # 1.2 shards are subtracted above. The limit of 2.6 shards and these 1.2 are together less
        # than 4. So a program that keeps the gathered rows fails, even if it took useless memory in
        # the first call.
        text += imports_note(of_tiny.own_growth(rank), 1.2 * shard)
        run.require(grown <= 2.6 * shard, text)


@number("9.1")
@weight(0.25)
def test_pair_normalizes_own_rows(world, rng):
    """Each rank normalises its own rows before it sends them; nothing that a rank sends depends on
    the scale of a row of x
    """
    for n in (2, 4):
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
                f" operation {i} sends other numbers. The sum of their {name} changes from"
                f" {before:.3g} to {found:.3g}. This sum must not change: normalised rows do not"
                " depend on the scale of a row of x. The products and gradients that are"
                " computed from normalised rows do not depend on this scale, either."
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
    rows = (sequences.normalize(p.own_x[rank]) ** powers).sum((1, 2))
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


# ——— 9.2


def attention_problems(rng, n):
    return [
        AttentionProblem(rng, n, causal=False, mixed=True),
        AttentionProblem(rng, n, causal=True),
        AttentionProblem(rng, n, causal=True, rows=4, width=2, dtype=np.float32, mixed=True),
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
            in_turn(n, first.forward(), other.forward()),
        )
        for run, p in zip(runs, problems):
            p.has_output(run)
            run.keeps_inputs()
        one.has_output(twice, lambda r: r[1])
        what = "(output, logsumexp)"
        returns_both(kept, first.outputs, other.outputs, what, tolerance=first.tolerance)


@number("9.2")
@weight(0.5)
@on_gloo
def test_ring_large_scores(world, rng):
    """Both passes of ring attention are right for scores in the thousands, positive and negative,
    also if the largest scores of two queries or two blocks are far apart
    """
    for n in (1, 2, 3):
        problems = [
            AttentionProblem(rng, n, causal, offset=offset)
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
            in_turn(n, first.backward(), other.backward()),
        )
        for run, p in zip(runs, problems):
            p.has_gradients(run)
            run.keeps_inputs()
        first.has_gradients(twice, lambda r: r[1])
        what = "(grad_q, grad_k, grad_v)"
        returns_both(kept, first.gradients, other.gradients, what, tolerance=first.tolerance)


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
            because = "Blocks travel around the ring, from each rank to the next one."
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
                            f"rank {rank} issued a {operation}. {because}",
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
    p = AttentionProblem(rng, 2, causal=False)
    for run in world(p.n, p.forward(driver="described"), p.backward(driver="described")):
        require_no_gradient(run)
    n = 12
    # In ``wide``, the keys and values take the most memory. In ``long``, the scores take the most.
    # To try both problems in both modes would take twice as long. A submission may have separate
    # code for the causal mode. This code is likely to collect all keys, and the code for the other
    # mode is likely to keep all scores.
    wide = LargeAttention(rng, n, rows=int(rng.integers(8, 10)), width=6144, causal=True)
    long = LargeAttention(rng, n, rows=int(rng.integers(412, 429)), width=2, causal=False)
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


# ——— 9.3

COUNTS = {1: (5,), 2: (5, 3), 3: (4, 1, 6), 4: (3, 6, 1, 4)}


def choices(rng, n, each, counts=None):
    return [rng.integers(0, n * each, count) for count in counts or COUNTS[n]]


def choices_of_others(rng, n, each, counts=None):
    """Draw choices of experts. If n > 1, at least one row travels from or to each rank."""
    while True:
        own = choices(rng, n, each, counts)
        if n == 1 or all(map(sum, zip(*rows_moved(experts.routes(own, each), 1)))):
            return own


@number("9.3")
@weight(0.5)
def test_routes(world, rng):
    """exchange_routes tells each rank how many tokens come from each rank, and for which experts (1
    to 4 ranks), also for more than 65,535 tokens; a later call does not change its result
    """
    for n in SIZES:
        drawn = [(choices(rng, n, each), each) for each in (1, 2, 3)]
        drawn.append(([np.zeros(c, np.int64) for c in (*COUNTS[n][1:], 0)], 2))
        # The last case has many tokens. An unstable sort seldom changes the order of a few tokens.
        drawn.append(([rng.integers(0, n * 2, 64 + rank) for rank in range(n)], 2))
        name = f"{MODULE}.exchange_routes"
        requests = [call(name, per_rank(*own), each) for own, each in drawn]
        for run, (own, each) in zip(world(n, *requests), drawn):
            run.returns(
                *experts.routes(own, each),
                label="(order, sent, received, arrived)",
                known_mistakes=experts.routes_mistakes(own, each),
            )
            run.keeps_inputs()
            # A count takes at least one byte, whatever its dtype.
            require_traffic(run, 8 * each * (n - 1), COUNTED, least=each * (n - 1))
        keeps_routes(world, rng, n)
    has_large_counts(world, rng)


def has_large_counts(world, rng):
    """Fail if a number of tokens is wrong because it does not fit into 16 bits."""
    each = 2
    many = [rng.permutation(np.repeat(np.arange(4), (300, 200, 66_000, 0))), np.ones(300, np.int64)]
    (run,) = world(2, call(f"{MODULE}.exchange_routes", per_rank(*many), each))
    run.returns(
        *experts.routes(many, each),
        label="(order, sent, received, arrived), with 66,000 tokens for one expert,",
        known_mistakes=experts.routes_mistakes(many, each),
    )


def keeps_routes(world, rng, n):
    """Fail if a later call of exchange_routes changes the result of an earlier call."""
    each = 2  # experts of a rank: an even number, so that ``choice ^ 1`` is on the same rank
    own = choices(rng, n, each)
    # Each token chooses the other expert of the same rank. So the number of tokens that travel
    # between two ranks stays the same, and all tensors have the same shapes as in the first call.
    same_rank = [choice ^ 1 for choice in own]
    # Each token chooses the expert with the opposite number. So if there are several ranks, other
    # numbers of tokens travel.
    opposite = [n * each - 1 - choice for choice in own]
    function, first = f"{MODULE}.exchange_routes", experts.routes(own, each)
    laters = (same_rank, opposite)

    def request(chosen):
        return call(function, per_rank(*chosen), each)

    runs = world(n, *(in_turn(n, request(own), request(later)) for later in laters))
    for run, later in zip(runs, laters):
        second = experts.routes(later, each)
        # Compare each part on its own, because a program may overwrite only one of the parts.
        for part, name in ((0, "order"), (slice(1, 3), "(sent, received)"), (3, "arrived")):
            returns_both(
                run,
                *([of_rank[part] for of_rank in routes] for routes in (first, second)),
                f"the values {name}",
                lambda r, part=part: r[part],
            )


@number("9.3")
@weight(0.5)
def test_rows_travel(world, rng):
    """to_experts delivers rows in the order of ranks and experts, and from_experts returns them in
    the order of the tokens, each with one all-to-all
    """
    for n in SIZES:
        # With many tokens, a rank that sends them one by one starts too many operations.
        many = [12 * n + rank for rank in range(n)]
        for each, dtype, counts in ((2, np.float64, None), (1, np.float32, many)):
            own = choices_of_others(rng, n, each, counts)
            of_ranks = experts.routes(own, each)
            p = ExpertProblem(rng, n, COUNTS[n], each=each, dtype=dtype, mixed=True)
            # One row has more bytes than all empty messages of a rank together.
            rows = [rng.standard_normal((len(c), 12)).astype(dtype) for c in own]
            arrived = experts.send(rows, of_ranks)
            others = [-own for own in rows]
            arrived_later = experts.send(others, of_ranks)
            there, back, *kept = world(
                n,
                p.request("to_experts", rows, of_ranks),
                p.request("from_experts", arrived, of_ranks),
                *(
                    in_turn(n, *(p.request(name, given, of_ranks) for given in pair))
                    for name, pair in (
                        ("to_experts", (rows, others)),
                        ("from_experts", (arrived, arrived_later)),
                    )
                ),
            )
            returns_both(kept[0], arrived, arrived_later, "the rows")
            returns_both(kept[1], rows, others, "the rows")
            there.returns(
                *arrived,
                label="the tensor of rows that arrive",
                known_mistakes=experts.send_mistakes(rows, of_ranks),
            )
            back.returns(
                *rows,
                label="the tensor of rows that come back from the experts' ranks",
                known_mistakes=experts.back_mistakes(rows, of_ranks),
            )
            there.keeps_inputs()
            back.keeps_inputs()
            out, into = rows_moved(of_ranks, rows[0][0].nbytes)
            for run, moved in ((there, out), (back, into)):
                require_traffic(run, with_empty(moved, n), UNPADDED, least=moved)
                require_few_operations(run, 1, "One all-to-all of rows is enough.")


COUNTED = "For each expert on another rank, send one number to that rank."
UNPADDED = (
    "Send each token only to its expert's rank and back, without padding. (An empty message counts"
    f" as {EMPTY_BYTES} bytes.)"
)


def rows_moved(of_ranks, row):
    """Return two lists: each rank's bytes of rows that leave it, and of rows that arrive at it.

    ``row`` is the number of bytes of a row. Rows that stay on their rank are not counted.
    """
    out = [row * (sum(sent) - sent[r]) for r, (_, sent, _, _) in enumerate(of_ranks)]
    into = [row * (sum(got) - got[r]) for r, (_, _, got, _) in enumerate(of_ranks)]
    return out, into


def with_empty(moved, n, exchanges=1):
    """Add to ``moved`` the bytes of an empty message to each other rank in each exchange."""
    return [own + EMPTY_BYTES * (n - 1) * exchanges for own in moved]


def expert_problems(rng, n):
    return [
        ExpertProblem(rng, n, COUNTS[n], mixed=True),
        ExpertProblem(rng, n, COUNTS[n], each=1, dtype=np.float32),
        ExpertProblem(rng, n, [6] * n, each=3, width=3),
    ]


@number("9.3")
@weight(0.5)
def test_mixture_forward(world, rng):
    """mixture_forward returns the outputs of a single device with all experts (1 to 4 ranks), also
    for logits in the thousands; a later call does not change these outputs
    """
    for n in SIZES:
        problems, other = expert_problems(rng, n), ExpertProblem(rng, n, [6] * n, each=3, width=3)
        first = problems[-1]
        problems += [
            ExpertProblem(rng, n, COUNTS[n], dtype=dtype, are_logits_large=True)
            for dtype in (np.float64, np.float32)
        ]
        # In the second call, either the routes differ, or all tensors have the same shapes as in
        # the first call.
        laters = (other, first.with_half_tokens())
        pairs = (in_turn(n, first.forward(), later.forward()) for later in laters)
        runs = world(n, *(p.forward() for p in problems), *pairs)
        for run, p in zip(runs, problems):
            p.has_y(run)
            p.has_saved(run)
            run.keeps_inputs()
        for run, later in zip(runs[len(problems) :], laters):
            first.has_both(run, later)


@number("9.3")
@weight(0.75)
@on_gloo
def test_mixture_backward(world, rng):
    """mixture_backward returns the gradients of tokens, gate and experts as on a single device with
    all experts (1 to 4 ranks)
    """
    for n in SIZES:
        problems, other = expert_problems(rng, n), ExpertProblem(rng, n, [6] * n, each=3, width=3)
        first = problems[-1]
        both = in_turn(n, first.backward(), other.backward())
        *runs, kept = world(n, *(p.backward() for p in problems), both)
        for run, p in zip(runs, problems):
            p.has_gradients(run)
            run.keeps_inputs()
        results = (p.cast(p.mixture.gradients(p.grads)) for p in (first, other))
        returns_both(kept, *results, "the gradients", tolerance=first.tolerance)


@number("9.3")
@weight(0.25)
def test_idle_experts(world, rng):
    """The mixture is right if one expert or all experts of a rank get no tokens, if a rank has no
    tokens, or if all probabilities are equal
    """
    for n in (1, 2, 3):
        problems = [
            ExpertProblem(rng, n, COUNTS[n], only=[1]),  # only rank 0 gets tokens
            ExpertProblem(rng, n, (*COUNTS[n][1:], 0), only=[0, 2 * n - 1]),
            ExpertProblem(rng, n, COUNTS[n]).with_equal_probabilities(),
        ]
        runs = world(n, *(p.forward() for p in problems), *(p.backward() for p in problems))
        for run, p in zip(runs, problems):
            p.has_y(run)
            p.has_saved(run)
        for run, p in zip(runs[len(problems) :], problems):
            p.has_gradients(run)


@number("9.3")
@weight(0.25)
def test_mixture_traffic(world, rng):
    """In each pass, a token travels once to its expert and once back, and no other expert
    multiplies it; no weight travels, and no result requires a gradient
    """
    for n, dtype in ((2, np.float64), (4, np.float32)):
        p = ExpertProblem(rng, n, COUNTS[n])
        for run in world(n, p.forward(driver="described"), p.backward(driver="described")):
            require_no_gradient(run)
        p = ExpertProblem(rng, n, COUNTS[n], width=20, dtype=dtype)
        forward, backward = world(n, p.forward(), p.backward())
        p.has_y(forward)
        p.has_gradients(backward)
        out, into = rows_moved(p.mixture.routes, 20 * np.dtype(dtype).itemsize)
        moved = [a + b for a, b in zip(out, into)]
        counts, gate = 8 * p.each * (n - 1), 2 * (n - 1) / n * p.gate.astype(dtype).nbytes
        most = with_empty(moved, n, exchanges=2)
        require_traffic(forward, [counts + own for own in most], UNPADDED, least=moved)
        sentence = f"{UNPADDED} In the backward pass, add one all-reduce of the gate's gradient."
        least = [gate + own for own in moved]
        require_traffic(backward, [gate + own for own in most], sentence, least)
    for n in (1, 2):
        p = balanced_experts(rng, n)
        passes = p.forward(driver="metered"), p.backward(driver="metered")
        for run, name, times in zip(world(n, *passes), ("forward", "backward"), (1, 2)):
            require_few_products(run, p, name, times)


def balanced_experts(rng, n, each=4, width=32):
    """Return a problem in which the experts of each rank get similar numbers of tokens.

    On each rank, no expert gets more than 1.9 times the mean number. A program may then pad the
    tokens of each expert to the same number of rows.
    """
    while True:
        problem = ExpertProblem(rng, n, [16] * n, each=each, width=width)
        numbers = [np.bincount(r[3], minlength=each) for r in problem.mixture.routes]
        if all(0 < each * own.max() <= 1.9 * own.sum() for own in numbers):
            return problem


def require_few_products(run, p, name, times):
    """Fail if a rank computes tokens with other experts than theirs.

    ``times`` is 1 for the forward pass. It is 2 for the backward pass, because each product has two
    gradients there. A rank may compute twice as much as needed, because a right program may repeat
    a computation, or pad. A program in which each of the four experts computes all tokens computes
    about four times as much as needed.
    """
    width = len(p.gate)
    for rank in range(p.n):
        arrived, own = len(p.mixture.arrived[rank]), len(p.tokens[rank])
        by_experts = times * 2 * arrived * width**2
        needed = by_experts + times * 2 * own * p.gate.size
        done = sum(entry.amount for entry in run.require_products(rank, by_experts))
        text = (
            f"rank {rank} computed {done} floating-point operations in products of matrices in the"
            f" {name} pass. The gate and one expert for each of {arrived} tokens take {needed}; up"
            f" to {2 * needed} are allowed. Does each of the rank's {p.each} experts compute all"
            " tokens, and does a mask then choose the results? Multiply a token only by its own"
            " expert's weight."
        )
        run.require(done <= 2 * needed, text)


@number("9.3")
@weight(0.25)
def test_mixture_misuse(world, rng):
    """Gates, experts, rows and gradients that do not fit raise ValueError with the numbers"""
    for n in (1, 2):
        problem = ExpertProblem(rng, n, [4] * n, width=5)
        cases = mixture_misuse(problem)
        requests = (problem.request(name, *given, may_raise=True) for name, given, _ in cases)
        for run, (name, _, words) in zip(world(n, *requests), cases):
            run.raises_value_error(*words, given=f"wrong arguments of {name}")


def mixture_misuse(p):
    """Return triples for a problem of four tokens of five columns on each of one or two ranks.

    A triple has the name of a function, its wrong arguments, and the numbers that its error names.
    """
    n = p.n
    saved = [p.mixture.saved(rank) for rank in range(n)]
    routes = [route for _, _, route, *_ in saved]
    short = [weights[:1] + [weights[1][:, :4]] for weights in p.own_weights]
    one_less = [x[:3] for x in p.tokens]
    of_four = experts.routes([np.arange(4) % (2 * n)] * n, 2)  # each rank gets four rows
    narrow, columns = [p.gate[:, :-1]] * n, str(2 * n - 1)
    wide, more = [np.hstack([p.gate, p.gate[:, :1]])] * n, str(2 * n + 1)
    low = [weights[:1] + [weights[1][:4]] for weights in p.own_weights]
    short_first = [[weights[0][:, :4]] + weights[1:] for weights in p.own_weights]
    thin = [grad[:, :4] for grad in p.grads]
    return [
        ("exchange_routes", ([np.zeros(2, np.int64)] * n, [0] * n), ("0",)),
        ("exchange_routes", ([np.zeros(2, np.int64)] * n, [-1] * n), ("-1",)),
        ("to_experts", (one_less, routes), ("3", "4")),
        ("from_experts", ([np.ones((5, 5))] * n, of_four), ("5", "4")),
        ("mixture_forward", ([p.gate[:4]] * n, p.own_weights, p.tokens), ("5", "4")),
        ("mixture_forward", (narrow, p.own_weights, p.tokens), (columns,)),
        ("mixture_forward", (wide, p.own_weights, p.tokens), (more,)),
        ("mixture_forward", (p.gates, short, p.tokens), ("4", "5")),
        ("mixture_forward", (p.gates, low, p.tokens), ("4", "5")),
        ("mixture_forward", (p.gates, short_first, p.tokens), ("4", "5")),
        ("mixture_backward", ([p.gate[:4]] * n, p.own_weights, saved, p.grads), ("5", "4")),
        ("mixture_backward", (narrow, p.own_weights, saved, p.grads), (columns,)),
        ("mixture_backward", (wide, p.own_weights, saved, p.grads), (more,)),
        ("mixture_backward", (p.gates, short, saved, p.grads), ("4", "5")),
        ("mixture_backward", (p.gates, low, saved, p.grads), ("4", "5")),
        ("mixture_backward", (p.gates, short_first, saved, p.grads), ("4", "5")),
        ("mixture_backward", (p.gates, p.own_weights, saved, thin), ("4", "5")),
        ("mixture_backward", (p.gates, p.own_weights, saved, one_less), ("3", "4")),
    ]
