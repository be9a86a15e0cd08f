"""Part 1 · Collectives: the hidden checks. Every rank of 1, 2, 3 and 4; other roots, shapes, dtypes and memory layouts.

Inputs are small random integers, also in float tensors: sums and products of them have no rounding errors, so that every
comparison is exact.
"""

from itertools import product

import numpy as np
import pytest
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.face import EXACT, Hold, Probe, Strided, call, each, rounding
from grader.judging import collective_truth as truth

SIZES = (1, 2, 3, 4)
ROOTED = ("broadcast", "scatter", "gather", "reduce")
REDUCING = ("reduce", "reduce_scatter", "all_reduce")
KEPT = "the list of two calls' results, kept together,"
OVERWRITTEN = "the second call's result stands in the place of the first one's: its memory was used again"
ONE_MEMORY = "one part in all places: [tensor] * n is one and the same tensor n times"
A_SUM = "the sum, where another operation was asked for: does op reach the collective?"
BY_ENTRIES = "every n-th entry, or row, in place of consecutive ones: a block is a run of them"
COLLECTIVES = ("broadcast", "scatter", "gather", "reduce", "all_gather", "reduce_scatter", "all_reduce", "all_to_all")


def integers(rng, shape, dtype=np.float32, low=-50, high=50):
    """Random integers without zero, in any dtype. Those of 64 bits use more of them than a smaller dtype has."""
    values = rng.integers(low, high, size=shape)
    values = np.where(values == 0, high, values)
    if low == -50 and np.dtype(dtype).itemsize == 8:
        values = values * ((1 << 54) + 1 if dtype is np.int64 else (1 << 40) + 1)
    return values.astype(dtype)


def cases(collective, n):
    """Arguments to try on n ranks: (shape, dtype, strided, options)."""
    roots = range(n) if collective in ROOTED else (None,)
    ops = ("sum", "max", "min", "product", "average") if collective in REDUCING else (None,)
    layouts = [((2 * n,), np.float32, False), ((n, 3), np.float64, True), ((3 * n, 2, 2), np.int64, False)]
    if collective in ("broadcast", "reduce", "all_reduce"):
        layouts.append(((), np.float32, False))
    for i, (root, op) in enumerate(product(roots, ops)):
        for j, (shape, dtype, strided) in enumerate(layouts):
            if op == "average" and dtype is np.int64 or (i + j) % 2 and op not in (None, "sum"):
                continue
            options = {} if root is None else {"root": root}
            yield shape, dtype, strided, options if op is None else options | {"op": op}


def request(collective, tensors, strided, options):
    """The call of a collective on these tensors, one for each rank."""
    wrapped = [Strided(t) if strided else t for t in tensors]
    if collective != "scatter":
        return call(f"collectives.{collective}", each(*wrapped), **options)
    dealt = [t if rank == options["root"] else None for rank, t in enumerate(wrapped)]
    like = truth.blocks(np.zeros_like(tensors[0]), len(tensors))[0]
    return call("collectives.scatter", each(*dealt), Strided(like) if strided else like, **options)


@number("1.1")
@weight(0.5)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_values(world, rng, collective):
    """{collective} on every rank of 1 to 4: all roots, operations, shapes, dtypes and layouts, inputs untouched"""
    for n in SIZES:
        chosen = list(cases(collective, n))
        if collective == "reduce_scatter" and world.torch < (2, 9):  # whose gloo adds up, whatever it is asked for
            chosen = [case for case in chosen if case[-1]["op"] in ("sum", "average")]
        inputs = [
            [
                integers(rng, shape, dtype, -3, 4) if o.get("op") == "product" else integers(rng, shape, dtype)
                for _ in range(n)
            ]
            for shape, dtype, _, o in chosen
        ]
        requests = [request(collective, xs, strided, o) for xs, (_, _, strided, o) in zip(inputs, chosen)]
        for run, xs, (_, dtype, _, options) in zip(world(n, *requests), inputs, chosen):
            # How an average is rounded is the question of problem 1.4.
            within = rounding(dtype) if options.get("op") == "average" else EXACT
            known = _mistakes(collective, xs, **options) if n > 1 else None
            run.returns(*getattr(truth, collective)(xs, **options), within=within, lookalikes=known)
            run.keeps_inputs()
    _keeps_results(world, rng, collective, n=2)


def _mistakes(collective, xs, root=0, op=None):
    """What each rank gets where blocks are every n-th entry, parts share one memory, or each operation is a sum."""
    n = len(xs)
    if collective in ("gather", "all_gather"):
        return [{ONE_MEMORY: np.concatenate([x] * n) for x in xs[-1:]}] * n
    if op not in (None, "sum", "average") and collective != "reduce_scatter":
        return [{A_SUM: sum(xs)}] * n
    dealt = {
        "scatter": lambda rank: xs[root][rank::n],
        "all_to_all": lambda rank: np.concatenate([x[rank::n] for x in xs]),
        "reduce_scatter": lambda rank: truth.reduction(xs, op)[rank::n],
    }
    return [{BY_ENTRIES: dealt[collective](rank)} for rank in range(n)] if collective in dealt else None


def _keeps_results(world, rng, collective, n):
    """A result is new memory: the next call leaves it alone."""
    options = ({"root": 0} if collective in ROOTED else {}) | ({"op": "sum"} if collective in REDUCING else {})
    pair = [[integers(rng, (2 * n,)) for _ in range(n)] for _ in range(2)]
    like = [np.zeros(2, np.float32)] if collective == "scatter" else []
    turns = [each(*([x if rank == 0 or not like else None, *like] for rank, x in enumerate(xs))) for xs in pair]
    (run,) = world(n, call(f"collectives.{collective}", *turns, driver="in_turn", **options))
    _keeps_both(run, [getattr(truth, collective)(xs, **options) for xs in pair])


def _keeps_results_of(world, rng, function, right, *more):
    """The same, of a function of a tensor, and of ``more`` that is the same in both calls; ``right`` tells the results."""
    pair = [[integers(rng, (5,)) for _ in range(3)] for _ in range(2)]
    turns = [each(*([x, *more] for x in xs)) for xs in pair]
    (run,) = world(3, call(f"collectives.{function}", *turns, driver="in_turn"))
    _keeps_both(run, [right(xs) for xs in pair])


def _keeps_both(run, results):
    """``results`` are those of the first call and of the second, each for all ranks."""
    first, second = results
    run.returns(*map(list, zip(first, second)), named=KEPT, lookalikes=[{OVERWRITTEN: [own, own]} for own in second])


@number("1.1")
@weight(0.125)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_call(world, rng, collective):
    """{collective} is one call of the operation of that name, and not a costlier one"""
    n = 3
    options = ({"root": n - 1} if collective in ROOTED else {}) | ({"op": "max"} if collective in REDUCING else {})
    xs = [integers(rng, (2 * n,)) for _ in range(n)]
    (run,) = world(n, request(collective, xs, False, options))
    run.uses_only(collective, because=f"This problem asks for the {collective} itself.")
    for rank in range(n):
        calls = len(run.operations(rank))
        run.demand(calls == 1, f"rank {rank} communicated {calls} times where one {collective} is enough.")


@number("1.1")
@weight(0.125)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_misuse(world, rng, collective):
    """{collective} answers misuse with a ValueError that holds the numbers, on every rank, before anything is sent"""
    n = 3
    x = integers(rng, (2 * n,))
    good = ({"root": 0} if collective in ROOTED else {}) | ({"op": "sum"} if collective in REDUCING else {})
    like = {"like": x[:2]} if collective == "scatter" else {}
    bad = []  # (arguments, words in the message)
    if collective in ROOTED:
        bad += [((x, {"root": root}), (str(root),)) for root in (-1, n)]
    if collective in REDUCING:
        bad += [((x, {"op": "mean"}), ("mean",)), ((x.astype(np.int64), {"op": "average"}), ("int64",))]
    if collective in ("reduce_scatter", "all_to_all"):
        bad += [((integers(rng, (7, 2)), {}), ("7", "3"))]
    if collective in ("gather", "all_gather"):
        bad += [((np.array(5.0, np.float32), {}), ())]
    requests = [call(f"collectives.{collective}", t, may_raise=True, **(like | good | o)) for (t, o), _ in bad]
    for run, (_, words) in zip(world(n, *requests), bad):
        run.raises_value_error(*words)
    if collective == "scatter":  # the root alone knows, so it is the only rank here
        (run,) = world(1, call("collectives.scatter", x[:3], x[:2], root=0, may_raise=True))
        run.raises_value_error("3", "2")


@number("1.2")
@weight(0.75)
def test_in_rank_order(world):
    """The action runs once on every rank, in rank order, and nobody returns before the last rank has ended"""
    for n in SIZES:
        # The first ranks take longest: without barriers the later ones overtake them.
        actions = each(*(Probe("action", returns=rank * 10, seconds=0.01 * (n - rank)) for rank in range(n)))
        # And in the second call the last rank comes first.
        late = {rank: Hold(until="call began", on=n - 1, then=0.1) for rank in range(n - 1)}
        first, second = world(
            n, call("collectives.in_rank_order", actions), call("collectives.in_rank_order", actions, holds=late)
        )
        for run in (first, second):
            run.returns(*(rank * 10 for rank in range(n)))
            for rank in range(n):
                times = len(run.marks(rank, "action began"))
                run.demand(times == 1, f"rank {rank} ran the action {times} times instead of once.")
            for rank in range(n if n > 1 else 0):
                run.demand(bool(run.operations(rank)), f"rank {rank} communicated nothing: time does not order ranks.")
            began = [run.passed(rank, "action began") for rank in range(n)]
            ended = [run.passed(rank, "action ended") for rank in range(n)]
            for rank in range(1, n):
                sentence = f"rank {rank}'s action began before rank {rank - 1}'s had ended: what makes it wait?"
                run.demand(ended[rank - 1] <= began[rank], sentence)
            for rank in range(n):
                sentence = f"rank {rank} returned before rank {n - 1}'s action had ended."
                run.demand(ended[-1] <= run.passed(rank, "call ended"), sentence)


@number("1.3")
@weight(1.0)
def test_all_reduce_from_parts(world, rng):
    """The sum on every rank of 1 to 4, for lengths that do not divide by them, any shape, dtype and layout"""
    shapes = (
        ((8,), np.float32, False),
        ((7,), np.float64, False),
        ((1,), np.float32, False),
        ((3, 5), np.int64, True),
        ((), np.float32, False),
    )
    for n in SIZES:
        _sums(world, rng, "collectives.all_reduce_from_parts", n, shapes)
    _keeps_results_of(world, rng, "all_reduce_from_parts", lambda xs: truth.all_reduce(xs, "sum"))


def _sums(world, rng, function, n, shapes):
    inputs = [[integers(rng, shape, dtype) for _ in range(n)] for shape, dtype, _ in shapes]
    wrap = [Strided if strided else (lambda x: x) for _, _, strided in shapes]
    runs = world(n, *(call(function, each(*map(w, xs))) for w, xs in zip(wrap, inputs)))
    for run, xs in zip(runs, inputs):
        run.returns(*truth.all_reduce(xs, "sum"))
        run.keeps_inputs()
    return runs


@number("1.3")
@weight(0.5)
def test_built_from_its_parts(world, rng):
    """It is one reduce-scatter and then one all-gather, of no more than the tensor and its padding"""
    for n, length in ((2, 9), (3, 10), (4, 8)):
        xs = [integers(rng, (length,)) for _ in range(n)]
        (run,) = world(n, call("collectives.all_reduce_from_parts", each(*xs)))
        run.uses_only("reduce_scatter", "all_gather", because="This all-reduce is to be built from its two parts.")
        padded = -(-length // n) * n
        for rank in range(n):
            kinds = [o.kind for o in run.operations(rank)]
            run.demand(
                kinds == ["reduce_scatter", "all_gather"], f"rank {rank} called {kinds} instead of each part once."
            )
            scattered = run.operations(rank)[0].elements
            run.demand(
                scattered <= padded, f"rank {rank} reduce-scattered {scattered} elements, where {padded} hold them all."
            )


@number("1.4")
@weight(0.5)
def test_average_is_exact(world, rng):
    """The average is the sum's nearest quotient, on every rank of 1 to 4, and no ReduceOp.AVG is used"""
    for n in SIZES:
        dtypes = (np.float32, np.float64)
        large = {np.float32: 9999, np.float64: 10**15}  # sums of four of them still have no rounding errors
        inputs = [[integers(rng, (64,), d, -large[d], large[d]) for _ in range(n)] for d in dtypes for _ in range(2)]
        layouts = (Strided, np.asarray) * len(dtypes)  # a copy of the one may be the other itself
        runs = world(n, *(call("collectives.average", each(*map(w, xs))) for w, xs in zip(layouts, inputs)))
        for run, xs in zip(runs, inputs):
            run.returns(*[truth.reduction(xs, "average")] * n)
            run.keeps_inputs()
            for rank in range(n):
                used = [o.reduction for o in run.operations(rank)]
                run.demand(
                    "average" not in used, f"rank {rank} used ReduceOp.AVG, which some backends lack: sum, then divide."
                )
    _keeps_results_of(world, rng, "average", lambda xs: [truth.reduction(xs, "average")] * 3)


@number("1.4")
@weight(0.25)
def test_average_of_integers(world, rng):
    """The average of integers is a ValueError that names their dtype"""
    for n in (1, 3):
        requests = [
            call("collectives.average", integers(rng, (4,), dtype), may_raise=True) for dtype in (np.int64, np.int32)
        ]
        for run, name in zip(world(n, *requests), ("int64", "int32")):
            run.raises_value_error(name)


@number("1.5")
@weight(1.0)
def test_compute_does_not_wait(world, rng):
    """compute begins while the all-reduce is under way, even when other ranks have not come to it"""
    for n in (2, 3, 4):
        xs = [integers(rng, (5,)) for _ in range(n)]
        requests = []
        for early in (0, n - 1):
            # All others come late, and not before the early rank's compute has begun: a blocking call never gets there.
            holds = {rank: Hold(until="compute began", on=early) for rank in range(n) if rank != early}
            requests.append(call("collectives.overlapped_all_reduce", each(*xs), Probe("compute", 7), holds=holds))
        for run in world(n, *requests):
            run.values()
            for rank in range(n):
                began = run.marks(rank, "compute began")
                run.demand(len(began) == 1, f"rank {rank} called compute {len(began)} times instead of once.")
                started = [o for o in run.operations(rank) if o.kind == "all_reduce"]
                sentence = f"rank {rank} began to compute before it had started its all-reduce: nothing overlaps."
                run.demand(bool(started) and started[0].at <= began[0].at, sentence)


@number("1.5")
@weight(0.5)
def test_it_waits_before_it_returns(world, rng):
    """The sum is complete when it is returned, also on a rank that is far ahead of the others; inputs untouched"""
    for n in SIZES:
        holds = {rank: Hold(until="call began", on=0, then=0.15) for rank in range(1, n)}
        xs = [integers(rng, (3, 4), np.float64) for _ in range(n)]
        function, compute = "collectives.overlapped_all_reduce", Probe("compute", "done")
        late = call(function, each(*map(Strided, xs)), compute, holds=holds)
        for run in world(n, late, call(function, each(*xs), compute)):
            run.returns(*((total, "done") for total in truth.all_reduce(xs, "sum")))
            run.keeps_inputs()

    def both(xs):
        return [(total, "done") for total in truth.all_reduce(xs, "sum")]

    _keeps_results_of(world, rng, "overlapped_all_reduce", both, Probe("compute", "done"))


@number("1.6")
@weight(0.75)
def test_shift_right(world, rng):
    """Each rank of 1 to 4 gets its left neighbour's tensor, small or large, and sends once"""
    shapes = (((4,), np.float32, False), ((3, 2), np.int64, True), ((1 << 18,), np.float32, False))
    for n in SIZES:
        inputs = [[integers(rng, shape, dtype) for _ in range(n)] for shape, dtype, _ in shapes]
        wrap = [Strided if strided else (lambda x: x) for _, _, strided in shapes]
        runs = world(n, *(call("collectives.shift_right", each(*map(w, xs))) for w, xs in zip(wrap, inputs)))
        for run, xs in zip(runs, inputs):
            left = {"this is the right neighbour's tensor: the ring turns the wrong way": 1}
            lookalikes = [{name: xs[(rank + step) % n] for name, step in left.items()} for rank in range(n)]
            run.returns(*(xs[(rank - 1) % n] for rank in range(n)), lookalikes=lookalikes if n > 2 else None)
            run.keeps_inputs()
            if n == 1:
                continue
            run.uses_only("send", "recv", because="Neighbours exchange by sending and receiving.")
            for rank in range(n):
                sends = [(o.peer, o.elements) for o in run.operations(rank) if o.kind == "send"]
                told = " and ".join(f"{elements} elements to rank {peer}" for peer, elements in sends) or "nothing"
                due = f"its {xs[rank].size} elements go to rank {(rank + 1) % n}, once, and nowhere else."
                run.demand(sends == [((rank + 1) % n, xs[rank].size)], f"rank {rank} sent {told}: {due}")
    _keeps_results_of(world, rng, "shift_right", lambda xs: [xs[rank - 1] for rank in range(3)])


@number("1.7")
@weight(2.0)
def test_ring_values(world, rng):
    """The sum on every rank of 1 to 4, for any length, shape, dtype and layout, twice; inputs untouched"""
    shapes = (
        ((12,), np.float32, False),
        ((7,), np.float64, False),
        ((1,), np.float32, False),
        ((2,), np.int64, False),
        ((3, 5), np.float32, True),
        ((), np.float64, False),
        ((12,), np.float32, False),
    )
    for n in SIZES:
        _sums(world, rng, "collectives.ring_all_reduce", n, shapes)
    _keeps_results_of(world, rng, "ring_all_reduce", lambda xs: truth.all_reduce(xs, "sum"))


@number("1.7")
@weight(1.5)
def test_ring_traffic(world, rng):
    """Sends and receives alone, to the neighbours alone, and each rank sends at most 2(n−1)/n of the bytes"""
    for n, length in ((2, 8), (3, 10), (4, 7), (4, 4096)):
        (run,) = _sums(world, rng, "collectives.ring_all_reduce", n, [((length,), np.float32, False)])
        run.uses_only("send", "recv", because="The ring is built from sends and receives alone.")
        most = 2 * (n - 1) * -(-length // n) * 4
        for rank in range(n):
            sends = [o for o in run.operations(rank) if o.kind == "send"]
            strangers = [o for o in sends if o.peer not in ((rank + 1) % n, (rank - 1) % n)]
            run.demand(
                not strangers, f"rank {rank} sent to rank {strangers[0].peer if strangers else 0}: no neighbour of its."
            )
            total = sum(o.bytes for o in sends)
            largest, chunk = max(o.elements for o in sends), -(-length // n)
            sentence = (
                f"rank {rank} sent {largest} of {length} elements at once: a step of the ring passes on one chunk,"
            )
            run.demand(largest <= chunk, f"{sentence} 1/n of the tensor, here at most {chunk}.")
            sentence = f"rank {rank} sent {total} bytes; a ring needs {most}, 2(n−1) chunks of 1/n of the tensor."
            run.demand(total <= most, sentence)


@number("1.7")
@weight(0.5)
def test_ring_steps(world, rng):
    """No rank sends more than 2(n−1) times, and none at all when it is alone"""
    for n in SIZES:
        (run,) = _sums(world, rng, "collectives.ring_all_reduce", n, [((24,), np.float32, False)])
        for rank in range(n):
            sends = sum(o.kind == "send" for o in run.operations(rank))
            run.demand(
                sends <= 2 * (n - 1), f"rank {rank} sent {sends} times; two phases of n−1 steps are {2 * (n - 1)}."
            )
