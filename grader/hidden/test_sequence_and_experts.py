"""Part 9 · Long sequences and many experts: the hidden checks.

They compare with a single device in float64.
"""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check import driver_results
from grader.check.api import PEAK, call, in_strict_order, on_gloo, per_rank
from grader.hidden.sequence_problem import (
    MODULE,
    AttentionProblem,
    ExpertProblem,
    PairProblem,
    require_traffic,
)
from grader.reference import experts

SIZES = (1, 2, 3, 4)
MIB = 2**20


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
    """y and what is saved are right on every rank of 1 to 4, in float32 and float64, twice"""
    for n in SIZES:
        problems = pair_problems(rng, n)
        *runs, twice = world(
            n, *(p.forward() for p in problems), problems[-1].forward(driver="twice")
        )
        for run, p in zip(runs, problems):
            p.has_y(run)
            p.has_saved(run, lambda r: r[1])
            run.keeps_inputs()
        problems[-1].has_y(twice, lambda r: r[1][0])
        problems[-1].has_saved(twice, lambda r: r[1][1])


@number("9.1")
@weight(0.25)
@on_gloo
def test_pair_saves(world, rng):
    """A rank saves its own rows of x and its own columns of z, and not all rows of x"""
    for n in SIZES:
        p = PairProblem(rng, n, rows=4, width=6, hidden=1)
        (run,) = world(n, p.forward(driver="described"))
        p.has_saved(run, lambda r: driver_results.value(r)[1])
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
        problems = pair_problems(rng, n)
        for run, p in zip(world(n, *(p.backward() for p in problems)), problems):
            p.has_gradients(run)
            run.keeps_inputs()


@number("9.1")
@weight(0.5)
def test_pair_traffic(world, rng):
    """Forward, the pair sends as many bytes as one all-reduce; backward, one all-gather more"""
    for n in (2, 4):
        p = PairProblem(rng, n, rows=8, width=24, hidden=20)
        forward, backward = world(n, p.forward(), p.backward())
        p.has_y(forward)
        p.has_gradients(backward)
        shard = p.bytes * (n - 1) / n
        sentence = "One all-gather and one reduce-scatter of the sequence do not need more."
        require_traffic(forward, 2 * shard, sentence)
        sentence = "Two all-gathers and one reduce-scatter of the sequence do not need more."
        require_traffic(backward, 3 * shard, sentence)


@number("9.1")
@weight(0.25)
def test_pair_normalizes_own_rows(world, rng):
    """Each rank normalises its own rows, and nothing outside of the pair has all rows"""
    for n in (2, 4):
        p = PairProblem(rng, n, rows=4, width=8, hidden=1)
        runs = world(n, p.forward(driver="metered"), p.backward(driver="metered"))
        runs[0].returns(
            *p.cast(np.split(p.y, n)),
            tolerance=p.tolerance,
            select=lambda r: driver_results.value(r)[0],
            label="this rank's rows of y",
        )
        most = p.own_x[0].size
        for run in runs:
            for rank in range(n):
                entries = [e.amount for e in run.ledger(rank) if e.kind == "entries"]
                text = (
                    f"rank {rank} squared, averaged or multiplied a tensor of"
                    f" {max(entries, default=0)} entries, entry by entry. Its own rows have {most}."
                )
                likely = "Normalise before the all-gather, and go back through it after the sum."
                run.require(max(entries, default=0) <= most, f"{text} {likely}")


@number("9.1")
@weight(0.25)
def test_pair_misuse(world, rng):
    """Shards and gradients that do not fit raise ValueError with the numbers"""
    a, b, x = (rng.standard_normal(shape) for shape in ((6, 4), (4, 6), (3, 6)))
    z = rng.standard_normal((6, 4))
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
    runs = world(
        2,
        *(call(forward, pair, rows, may_raise=True) for pair, rows, _ in cases),
        *(call(backward, pair, (rows, z), x, may_raise=True) for pair, rows, _ in cases),
        *(call(backward, (a, b), (x, z), grad, may_raise=True) for grad, _ in grads),
    )
    words = [w for *_, w in cases] * 2 + [w for _, w in grads]
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


@number("9.2")
@weight(0.75)
def test_ring_forward(world, rng):
    """Output and logsumexp are those of full attention, causal and not, on 1 to 4 ranks, twice"""
    for n in SIZES:
        one = AttentionProblem(rng, n, causal=True, rows=1, width=3)
        problems = [*attention_problems(rng, n), one]
        *runs, twice = world(n, *(p.forward() for p in problems), one.forward(driver="twice"))
        for run, p in zip(runs, problems):
            p.has_output(run)
            run.keeps_inputs()
        one.has_output(twice, lambda r: r[1])


@number("9.2")
@weight(0.5)
@on_gloo
def test_ring_large_scores(world, rng):
    """Scores of thousands, of both signs, neither overflow nor vanish, forward and backward"""
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
    """The gradients of queries, keys and values are those of full attention, on 1 to 4 ranks"""
    for n in SIZES:
        problems = attention_problems(rng, n)
        *runs, twice = world(
            n, *(p.backward() for p in problems), problems[1].backward(driver="twice")
        )
        for run, p in zip(runs, problems):
            p.has_gradients(run)
            run.keeps_inputs()
        problems[1].has_gradients(twice, lambda r: r[1])


@number("9.2")
@weight(0.5)
def test_ring_traffic(world, rng):
    """Only neighbours talk to each other: n − 1 steps forward; backward, the gradients make n"""
    for n in (2, 3, 4):
        for causal in (False, True):
            p = AttentionProblem(rng, n, causal, rows=8, width=16)
            forward, backward = world(n, p.forward(), p.backward())
            p.has_output(forward)
            p.has_gradients(backward)
            because = "Blocks travel around the ring, from each rank to the next one."
            for run, steps in ((forward, 2 * (n - 1)), (backward, 2 * (2 * n - 1))):
                run.uses_only("send", "recv", because=because)
                for rank in range(n):
                    for operation in run.operations(rank):
                        towards = 1 if operation.kind == "send" else -1
                        run.require(
                            operation.peer == (rank + towards) % n,
                            f"rank {rank} issued a {operation}. {because}",
                        )
                sentence = f"That is {steps} tensors of {p.shard_bytes} bytes, T/n rows each."
                require_traffic(run, steps * p.shard_bytes, sentence)


MOST_BLOCKS = 5


@number("9.2")
@weight(0.5)
def test_ring_memory(world, rng):
    """No rank ever has the scores of all keys: at most five blocks of T/n × T/n are alive"""
    n = 6
    for causal in (False, True):
        p = AttentionProblem(rng, n, causal, rows=96, width=2)
        runs = world(n, p.forward(driver="metered"), p.backward(driver="metered"))
        p.has_output(runs[0], driver_results.value)
        p.has_gradients(runs[1], driver_results.value)
        for run in runs:
            for rank in range(n):
                require_blocks(run, rank, p)


def require_blocks(run, rank, p):
    """Fail if more is alive in a product than a few blocks of scores, and small tensors."""
    alive = max((e.alive for e in run.ledger(rank) if e.kind == "product"), default=0)
    text = (
        f"rank {rank}: {alive} bytes were alive in one of its products, as much as"
        f" {alive / p.block_bytes:.1f} blocks (T/{p.n}, T/{p.n}) of {p.block_bytes} bytes. At most"
        f" {MOST_BLOCKS} are needed at a time."
    )
    # Three quarters of a block are allowed for queries, keys, values and sums.
    likely = "Did a matrix of the scores of all keys come into being, or are old blocks kept?"
    run.require(alive <= (MOST_BLOCKS + 0.75) * p.block_bytes, f"{text} {likely}")


@number("9.2")
@weight(0.25)
def test_ring_takes_little_memory(world, rng):
    """A rank's process never has memory for the scores of all keys, as the system says"""
    n, rows, copies = 6, 8, 80
    p = AttentionProblem(rng, n, causal=False, rows=rows, width=2)
    options = {"driver": "large_blocks", "weighs": PEAK}
    # What a first call takes for other things counts in both calls.
    small, run = world(n, p.forward(copies=2, **options), p.forward(copies=copies, **options))
    small.values()
    run.returns(
        *np.split(p.forwarded[0], n), tolerance=p.tolerance, label="the first rows of the output"
    )
    block = (rows * copies) ** 2 * 8
    for rank in range(n):
        grown = (run.grown(rank) or 0) - (small.grown(rank) or 0)
        text = (
            f"rank {rank}'s process took {grown / MIB:.0f} MiB at most, as the system says. At"
            f" most {MOST_BLOCKS} blocks of scores are needed at a time, {block / MIB:.0f} MiB"
            f" each. The scores of all keys take {n * block / MIB:.0f} MiB, and their exponentials"
            " as much."
        )
        run.require(grown <= (MOST_BLOCKS + 2.5) * block, text)


@number("9.2")
@weight(0.25)
@in_strict_order
def test_ring_in_strict_order(world, rng):
    """The ring does not deadlock where messages keep nccl's order"""
    for n in (2, 3, 4):
        p = AttentionProblem(rng, n, causal=True)
        forward, backward = world(n, p.forward(), p.backward())
        p.has_output(forward)
        p.has_gradients(backward)


@number("9.2")
@weight(0.25)
def test_ring_misuse(world, rng):
    """Keys, values, an output or a gradient of another shape than q raise ValueError"""
    right, other = rng.standard_normal((4, 6)), rng.standard_normal((4, 5))
    short, sums = rng.standard_normal((3, 6)), rng.standard_normal(4)
    forward, backward = f"{MODULE}.ring_attention_forward", f"{MODULE}.ring_attention_backward"
    cases = [
        (forward, [right, *own, True], w)
        for own, w in (
            ((other, right), ("5", "6")),
            ((right, other), ("5", "6")),
            ((short, short), ("3", "4")),
        )
    ]
    for place in (1, 2, 3, 5):
        given = [right, right, right, right, sums, right, False]
        given[place] = short
        cases.append((backward, given, ("3", "4")))
    runs = world(2, *(call(name, *given, may_raise=True) for name, given, _ in cases))
    for run, (_, _, numbers) in zip(runs, cases):
        run.raises_value_error(*numbers)


# ——— 9.3

COUNTS = {1: (5,), 2: (5, 3), 3: (4, 1, 6), 4: (3, 6, 1, 4)}


def choices(rng, n, each):
    return [rng.integers(0, n * each, count) for count in COUNTS[n]]


@number("9.3")
@weight(0.5)
def test_routes(world, rng):
    """The ranks know how many tokens come from where, and for which experts, on 1 to 4 ranks"""
    for n in SIZES:
        drawn = [(choices(rng, n, each), each) for each in (1, 2, 3)]
        drawn.append(([np.zeros(c, np.int64) for c in (*COUNTS[n][1:], 0)], 2))
        # Many tokens: a sort that is not stable changes the order of a few at most seldom.
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


@number("9.3")
@weight(0.5)
@on_gloo
def test_rows_travel(world, rng):
    """Rows arrive in the order of ranks and experts, and come back in the order of the tokens"""
    for n in SIZES:
        for each, dtype in ((2, np.float64), (1, np.float32)):
            own = choices(rng, n, each)
            of_ranks = experts.routes(own, each)
            p = ExpertProblem(rng, n, COUNTS[n], each=each, dtype=dtype, mixed=True)
            rows = [rng.standard_normal((len(c), 3)).astype(dtype) for c in own]
            arrived = experts.send(rows, of_ranks)
            there, back = world(
                n,
                p.request("to_experts", rows, of_ranks),
                p.request("from_experts", arrived, of_ranks),
            )
            there.returns(
                *arrived,
                label="the rows that arrive",
                known_mistakes=experts.send_mistakes(rows, of_ranks),
            )
            back.returns(
                *rows,
                label="the rows that come back",
                known_mistakes=experts.back_mistakes(rows, of_ranks),
            )
            there.keeps_inputs()
            back.keeps_inputs()


def expert_problems(rng, n):
    return [
        ExpertProblem(rng, n, COUNTS[n], mixed=True),
        ExpertProblem(rng, n, COUNTS[n], each=1, dtype=np.float32),
        ExpertProblem(rng, n, [6] * n, each=3, width=3),
    ]


@number("9.3")
@weight(0.5)
def test_mixture_forward(world, rng):
    """The outputs are those of a dense mixture on one device, on 1 to 4 ranks"""
    for n in SIZES:
        problems = expert_problems(rng, n)
        for run, p in zip(world(n, *(p.forward() for p in problems)), problems):
            p.has_y(run)
            p.has_saved(run)
            run.keeps_inputs()


@number("9.3")
@weight(0.75)
def test_mixture_backward(world, rng):
    """The gradients of tokens, gate and experts are those of a dense mixture, on 1 to 4 ranks"""
    for n in SIZES:
        problems = expert_problems(rng, n)
        for run, p in zip(world(n, *(p.backward() for p in problems)), problems):
            p.has_gradients(run)
            run.keeps_inputs()


@number("9.3")
@weight(0.25)
def test_idle_experts(world, rng):
    """An expert without tokens, a rank whose experts get none, and a rank that has none, work"""
    for n in (1, 2, 3):
        problems = [
            ExpertProblem(rng, n, COUNTS[n], only=[1]),  # all ranks but the first get none
            ExpertProblem(rng, n, (*COUNTS[n][1:], 0), only=[0, 2 * n - 1]),
        ]
        runs = world(n, *(p.forward() for p in problems), *(p.backward() for p in problems))
        for run, p in zip(runs, problems):
            p.has_y(run)
            p.has_saved(run)
        for run, p in zip(runs[2:], problems):
            p.has_gradients(run)


@number("9.3")
@weight(0.25)
def test_mixture_traffic(world, rng):
    """Each token travels once to its expert and once back, forward and backward, and no weight
    does
    """
    for n in (2, 4):
        p = ExpertProblem(rng, n, COUNTS[n], width=20)
        forward, backward = world(n, p.forward(), p.backward())
        p.has_y(forward)
        p.has_gradients(backward)
        row, counts = 20 * 8, 8 * p.each * (n - 1)
        moved = []
        for rank, (_, sent, received, _) in enumerate(p.mixture.routes):
            moved.append(row * (sum(sent) - sent[rank] + sum(received) - received[rank]))
        sentence = "Send each token to its expert's rank only, without padding, and back."
        require_traffic(forward, [counts + own for own in moved], sentence)
        gate = 2 * (n - 1) / n * p.gate.nbytes
        sentence += " Backward, add one all-reduce of the gate's gradient."
        require_traffic(backward, [gate + own for own in moved], sentence)


@number("9.3")
@weight(0.25)
def test_mixture_misuse(world, rng):
    """Gates, experts, rows and gradients that do not fit raise ValueError with the numbers"""
    n = 2
    p = ExpertProblem(rng, n, (4, 4), width=5)
    saved = [p.mixture.saved(rank) for rank in range(n)]
    routes = [route for _, _, route, *_ in saved]
    short = [weights[:1] + [weights[1][:, :4]] for weights in p.own_weights]
    one_less = [x[:3] for x in p.tokens]
    arrived = [np.vstack([x, x[:1]]) if len(x) else np.ones((1, 5)) for x in p.mixture.arrived]
    cases = [
        ("exchange_routes", ([np.zeros(2, np.int64)] * n, [0] * n), [("0",)] * n),
        ("to_experts", (one_less, routes), [("3", "4")] * n),
        ("from_experts", (arrived, routes), None),
        ("mixture_forward", ([p.gate[:4]] * n, p.own_weights, p.tokens), [("5", "4")] * n),
        ("mixture_forward", ([p.gate[:, :3]] * n, p.own_weights, p.tokens), [("3",)] * n),
        ("mixture_forward", (p.gates, short, p.tokens), [("4", "5")] * n),
        ("mixture_backward", ([p.gate[:, :3]] * n, p.own_weights, saved, p.grads), [("3",)] * n),
        ("mixture_backward", (p.gates, p.own_weights, saved, one_less), [("3", "4")] * n),
    ]
    runs = world(n, *(p.request(name, *given, may_raise=True) for name, given, _ in cases))
    for run, (name, _, words) in zip(runs, cases):
        run.raises_value_error(*(words[0] if words else ()), given=name)
