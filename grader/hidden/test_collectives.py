"""Part 1 · Collectives: the hidden checks, on 1 to 4 ranks. The ring is also checked on 5 ranks.

The checks judge every rank, with other roots, shapes, dtypes and memory layouts than the public
checks. Inputs are random integers, also in float tensors. The integers are so small that their sums
and products have no rounding errors. So comparisons are exact. Only the averages of problem 1.1 are
compared with a tolerance.
"""

import math
from itertools import pairwise, product

import numpy as np
import pytest
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check import driver_results
from grader.check.api import (
    EXACT,
    STANDSTILL,
    Delay,
    Probe,
    RequiresGrad,
    Strided,
    call,
    in_strict_order,
    listed,
    mixed,
    on_gloo,
    per_rank,
    rounding,
)
from grader.reference import collective_mistakes as mistakes
from grader.reference import collectives as truth
from grader.reference.counting import often

SIZES = (1, 2, 3, 4)
ROOTED = ("broadcast", "scatter", "gather", "reduce")
REDUCING = ("reduce", "reduce_scatter", "all_reduce")
RING = "Build the ring from sends and receives only."
NEIGHBOURS = (
    "Use only sends and receives: send to the right neighbour, and receive from the left one."
)
KEPT = "the list of two calls' results, kept together,"
ONE_MEMORY = "all parts are equal. [tensor] * n is the same tensor n times: make n tensors"
BY_ENTRIES = "every n-th entry, or row, was taken. A block consists of consecutive entries"
BEFORE = (
    "the values were divided by n before the sum, so n quotients were rounded. Sum first, then"
    " divide the sum once"
)
SHAPED = ("broadcast", "reduce", "all_reduce")  # results have the shape of the input
COLLECTIVES = (
    "broadcast",
    "scatter",
    "gather",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "all_to_all",
)


def integers(rng, shape, dtype=np.float32, low=-50, high=50):
    """Return random integers from ``low`` to ``high``, without zero, in any dtype.

    If ``low`` is −50, as by default, the integers of a 64-bit dtype are multiplied by a constant.
    Then they are so large that a smaller dtype would change them.
    """
    values = rng.integers(low, high, size=shape)
    values = np.where(values == 0, high, values)
    if low == -50 and np.dtype(dtype).itemsize == 8:
        values = values * ((1 << 54) + 1 if dtype is np.int64 else (1 << 40) + 1)
    return values.astype(dtype)


# Layouts of tensors that are not contiguous. ALIKE is the same layout on all ranks, and MIXED is a
# different layout on each rank.
ALIKE, MIXED = "alike", "mixed"


def laid_out(tensors, layout):
    """Return the tensors, one for each rank, in a layout: ALIKE, MIXED, or contiguous if None."""
    if layout == MIXED:
        return mixed(*tensors)
    return per_rank(*(x if x is None or not layout else Strided(x) for x in tensors))


def orders(given):
    """Return each rank's memory order, "C" or "F", for ``in_memory_order``."""
    return [
        "F" if isinstance(x, Strided) and x.layout.startswith("transpose") else "C"
        for x in given.values
    ]


def cases(collective, n):
    """Yield the arguments to try on n ranks: (shape, dtype, layout, options)."""
    roots = range(n) if collective in ROOTED else (None,)
    ops = ("sum", "max", "min", "product", "average") if collective in REDUCING else (None,)
    tensors = [
        ((2 * n,), np.float32, None),
        ((n, 3), np.float64, ALIKE),
        ((3 * n, 2, 2), np.int64, None),
    ]
    tensors.append(((2 * n, 3), np.float32, MIXED))
    if collective in SHAPED:
        tensors.append(((), np.float32, None))
    for i, (root, op) in enumerate(product(roots, ops)):
        for j, (shape, dtype, layout) in enumerate(tensors):
            if op == "average" and dtype is np.int64 or (i + j) % 2 and op not in (None, "sum"):
                continue
            options = {} if root is None else {"root": root}
            yield shape, dtype, layout, options if op is None else options | {"op": op}


def request(collective, tensors, layout, options):
    """Return the call of a collective on these tensors, one for each rank."""
    if collective != "scatter":
        return call(f"collectives.{collective}", laid_out(tensors, layout), **options)
    dealt = [x if rank == options["root"] else None for rank, x in enumerate(tensors)]
    like = truth.blocks(np.zeros_like(tensors[0]), len(tensors))[0]
    return call(
        "collectives.scatter",
        laid_out(dealt, layout),
        laid_out([like] * len(tensors), layout),
        **options,
    )


@number("1.1")
@weight(0.4375)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_values(world, rng, collective):
    """{collective} returns the right tensors and does not change its inputs (1 to 4 ranks; all
    roots, operations, shapes, dtypes, layouts)
    """
    for n in SIZES:
        chosen = list(cases(collective, n))
        # Before torch 2.9, gloo's reduce-scatter always sums, whatever the operation is.
        if collective == "reduce_scatter" and world.torch < (2, 9):
            chosen = [case for case in chosen if case[-1]["op"] in ("sum", "average")]
        inputs = [
            [
                (
                    integers(rng, shape, dtype, -3, 4)
                    if o.get("op") == "product"
                    else integers(rng, shape, dtype)
                )
                for _ in range(n)
            ]
            for shape, dtype, _, o in chosen
        ]
        requests = [
            request(collective, xs, layout, o) for xs, (_, _, layout, o) in zip(inputs, chosen)
        ]
        kept, results = _two_calls(rng, collective, n)
        *runs, last = world(n, *requests, kept)
        for run, xs, (_, dtype, layout, options) in zip(runs, inputs, chosen):
            # Problem 1.4 judges how an average is rounded. Here rounding errors are allowed.
            tolerance = rounding(dtype) if options.get("op") == "average" else EXACT
            known = _mistakes(collective, xs, layout, **options)
            run.returns(
                *getattr(truth, collective)(xs, **options),
                tolerance=tolerance,
                known_mistakes=known,
            )
            run.keeps_inputs()
        _keeps_both(last, results)


def _mistakes(collective, xs, layout, root=0, op=None):
    """Return, for each rank, the results of known mistakes, or None if no mistake is known.

    There are four mistakes: entries are sent in the order in which they lie in memory, a block
    consists of every n-th entry, all parts share one memory, or every reduction is a sum.
    """
    n = len(xs)
    if collective in ("gather", "all_gather"):
        return [{ONE_MEMORY: np.concatenate([xs[-1]] * n)}] * n
    if layout and collective in SHAPED:
        options = ({"root": root} if collective in ROOTED else {}) | (
            {"op": op} if collective in REDUCING else {}
        )
        known = _in_memory_order(
            xs, layout, lambda lying: getattr(truth, collective)(lying, **options)
        )
        summed = {mistakes.A_SUM: sum(xs)} if op not in (None, "sum", "average") else {}
        return [summed | own for own in known]
    if layout and collective == "scatter":
        return _in_memory_order(truth.scatter(xs, root), layout, received=True)
    if op not in (None, "sum", "average") and collective != "reduce_scatter":
        return [{mistakes.A_SUM: sum(xs)}] * n
    dealt = {
        "scatter": lambda rank: xs[root][rank::n],
        "all_to_all": lambda rank: np.concatenate([x[rank::n] for x in xs]),
        "reduce_scatter": lambda rank: truth.reduction(xs, op)[rank::n],
    }
    return (
        [{BY_ENTRIES: dealt[collective](rank)} for rank in range(n)]
        if collective in dealt
        else None
    )


def _in_memory_order(xs, layout, combine=None, received=False):
    """Return, for each rank, a dict from the mistake MEMORY to its result.

    The dict is empty if the rank has no result. In this mistake, the ranks combine their entries in
    the order in which they lie in memory. If ``received`` is True, ranks only receive. In this
    case, contiguous memory is sent, and each rank stores the received entries in the memory order
    of its own tensor.
    """
    theirs = orders(laid_out(xs, layout))
    if received:
        found = [x.ravel().reshape(x.shape, order=order) for x, order in zip(xs, theirs)]
    else:
        found = mistakes.in_memory_order(xs, theirs, combine)
    return [{} if array is None else {mistakes.MEMORY: array} for array in found]


def _two_calls(rng, collective, n):
    """Return a request that calls a collective twice, and the results of both calls.

    Each result must be new memory, so that the second call does not change the first result.
    """
    options = ({"root": 0} if collective in ROOTED else {}) | (
        {"op": "sum"} if collective in REDUCING else {}
    )
    pair = [[integers(rng, (2 * n,)) for _ in range(n)] for _ in range(2)]
    like = [np.zeros(2, np.float32)] if collective == "scatter" else []
    turns = [
        per_rank(*([x if rank == 0 or not like else None, *like] for rank, x in enumerate(xs)))
        for xs in pair
    ]
    request = call(f"collectives.{collective}", *turns, driver="in_turn", **options)
    return request, [getattr(truth, collective)(xs, **options) for xs in pair]


def _two_calls_of(rng, n, function, right, *more):
    """Return a request that calls ``function`` twice, and the right results of both calls.

    ``more`` are further arguments, the same in both calls. ``right`` computes the results of a call
    from the tensors of all ranks.
    """
    pair = [[integers(rng, (5,)) for _ in range(n)] for _ in range(2)]
    turns = [per_rank(*([x, *more] for x in xs)) for xs in pair]
    return call(f"collectives.{function}", *turns, driver="in_turn"), [right(xs) for xs in pair]


def _keeps_both(run, results):
    """Fail if a result of one of the two calls is wrong after the second call.

    ``results`` has the right results of the first call and of the second call, each for all ranks.
    """
    first, second = results
    run.returns(
        *map(list, zip(first, second)),
        label=KEPT,
        known_mistakes=[{mistakes.OVERWRITTEN: [own, own]} for own in second],
    )


@number("1.1")
@weight(0.125)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_call(world, rng, collective):
    """{collective} issues one operation, the collective of the same name, and sends each element
    only to ranks that need it
    """
    n = int(rng.integers(2, 5))
    asked = [
        (dimensions, options)
        for dimensions in (1, 2, 3)
        for options in _options_to_try(rng, collective, n, world.torch)
    ]
    inputs = [_tensors_of(rng, n, dimensions, **options) for dimensions, options in asked]
    runs = world(
        n,
        *(request(collective, xs, None, options) for xs, (_, options) in zip(inputs, asked)),
    )
    for run, xs, (_, options) in zip(runs, inputs, asked):
        tolerance = rounding(np.float32) if options.get("op") == "average" else EXACT
        run.returns(*getattr(truth, collective)(xs, **options), tolerance=tolerance)
        run.uses_only(collective, because=f"This problem asks for the {collective} itself.")
        # The right number of elements of the operation: see ``Operation.elements``.
        size = xs[0].size
        due = {"scatter": size // n, "all_gather": size * n}.get(collective, size)
        for rank in range(n):
            calls = len(run.operations(rank))
            run.require(
                calls == 1,
                f"rank {rank} communicated {often(calls)} where one {collective} is enough.",
            )
            (done,) = run.operations(rank)
            require_elements(run, rank, done, due, xs[0].itemsize)


def _options_to_try(rng, collective, n, torch):
    """Return a list with the options of each call to try.

    There is one call for each ``op``, with a drawn root if the collective has a root. A collective
    without ``op`` is called with each root, or once if it has no root.
    """
    if collective not in REDUCING:
        return [{"root": root} for root in range(n)] if collective in ROOTED else [{}]
    ops = ["sum", "max", "min", "product", "average"]
    # Before torch 2.9, gloo's reduce-scatter always sums, whatever the operation is.
    if collective == "reduce_scatter" and torch < (2, 9):
        ops = ["sum", "average"]
    rooted = collective in ROOTED
    return [({"root": int(rng.integers(n))} if rooted else {}) | {"op": op} for op in ops]


def _tensors_of(rng, n, dimensions, root=None, op=None):
    """Return a tensor for each rank. All have one drawn shape, which has this many dimensions."""
    shape = int(rng.integers(2, 4)) * n, *rng.integers(2, 5, dimensions - 1).tolist()
    low, high = (-3, 4) if op == "product" else (-50, 50)
    return [integers(rng, shape, np.float32, low, high) for _ in range(n)]


def require_elements(run, rank, done, due, itemsize):
    """Fail unless an operation has the due number of elements, or of bytes.

    A submission may move elements in another dtype, for example as a view of their bytes.
    """
    moved = done.elements * done.itemsize
    if done.itemsize == itemsize:
        numbers = f"{done.elements} elements, but {due} are right"
    else:
        numbers = f"{moved:.0f} bytes, but {due * itemsize} are right"
    run.require(
        done.elements == due or moved == due * itemsize,
        f"rank {rank}: {done}. For this rank, the operation moves {numbers}. Each block travels"
        " once, to a rank that needs it.",
    )


@number("1.1")
@weight(0.0625)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_misuse(world, rng, collective):
    """{collective} raises ValueError with the value of a wrong argument, on every rank, before
    anything is sent
    """
    for n in (3, 1):
        bad = [
            *misuses(rng, collective, n),
            *(misuses_of_scatter(n) if collective == "scatter" else []),
        ]
        requests = [
            call(f"collectives.{collective}", *args, may_raise=True, **kwargs)
            for args, kwargs, _ in bad
        ]
        for run, (_, _, words) in zip(world(n, *requests) if bad else (), bad):
            run.raises_value_error(*words)


def misuses(rng, collective, n):
    """Yield the misuses that every rank can detect alone.

    Each misuse is (positional arguments, keyword arguments, words that the message must contain).
    """
    x, scalar = np.ones(2 * n, np.float32), np.array(5.0, np.float32)
    good = ({"root": 0} if collective in ROOTED else {}) | (
        {"op": "sum"} if collective in REDUCING else {}
    )
    good |= {"like": x[:2]} if collective == "scatter" else {}
    if collective in ROOTED:
        roots = -1, n, int(rng.integers(100, 10**6))
        yield from (((x,), good | {"root": root}, (str(root),)) for root in roots)
    if collective in REDUCING:
        name = f"mean{rng.integers(100, 10**6)}"
        yield (x,), good | {"op": name}, (name,)
        yield (x,), good | {"op": "SUM"}, ("SUM",)
        yield (x,), good | {"op": ["sum"]}, ("sum",)
        yield (x.astype(np.int64),), good | {"op": "average"}, ("int64",)
    if collective in ("reduce_scatter", "all_to_all") and n > 1:
        # n does not divide the number of rows, but it divides the number of entries.
        yield (np.ones((7, 6), np.float32),), good, ("7", "3")
    if collective in ("gather", "all_gather", "reduce_scatter", "all_to_all"):
        yield (scalar,), good, ()
    if collective == "scatter":
        yield (per_rank(scalar, *[None] * (n - 1)),), good | {"like": scalar}, ()


def misuses_of_scatter(n):
    """Return the misuses of scatter that only the root can detect, in the form of ``misuses``.

    In these calls every rank gets its own number as the root. So every rank raises an error, and no
    rank waits for another rank.
    """

    def ones(*shape):
        return np.ones(shape, np.float32)

    pairs = [  # the tensor, ``like``, and the words of the message
        (None, ones(2), ()),
        (ones(5), ones(2), ("5",)),
        (ones(12), ones(2), ("12",)),
        (ones(2 * n, 5), ones(2, 4), ("5",)),
        (ones(4 * n, 3), ones(2, 3), (str(4 * n),)),
        (ones(2 * n, 2), ones(2), ()),
        (ones(2 * n, 2, 3), ones(2, 6), ()),
        (ones(2 * n, 6), ones(2, 2, 3), ()),
        (np.array(7.0, np.float32), ones(1), ()),
    ]
    if n > 1:  # on one rank, this is right
        pairs.append((ones(4), ones(4), ("4",)))
    return [((tensor, like), {"root": per_rank(*range(n))}, words) for tensor, like, words in pairs]


@number("1.1")
@weight(0.0625)
@pytest.mark.parametrize("collective", COLLECTIVES)
@on_gloo
def test_result_stands_alone(world, rng, collective):
    """On every rank, also the root, {collective} returns a new tensor that does not require a
    gradient and keeps no other memory alive; the input keeps requires_grad
    """
    n = 2
    root = {"root": 0} if collective in ROOTED else {}
    asked = [root | {"op": op} for op in ("sum", "average")] if collective in REDUCING else [root]
    xs = [integers(rng, (2 * n,)) for _ in range(n)]
    leaves = per_rank(
        *(
            None if rank and collective == "scatter" else RequiresGrad(x)
            for rank, x in enumerate(xs)
        )
    )
    more = [RequiresGrad(np.zeros(2, np.float32))] if collective == "scatter" else []
    requests = [
        call(f"collectives.{collective}", leaves, *more, driver="described", **options)
        for options in asked
    ]
    for run, options in zip(world(n, *requests), asked):
        results = getattr(truth, collective)(xs, **options)
        run.returns_without_gradient(*results)
        for rank, kept in enumerate(
            run.read(driver_results.kept_bytes, "the memory that the result keeps")
        ):
            own = 0 if results[rank] is None else results[rank].nbytes
            # A slice would keep the whole tensor alive. That tensor has n times as many bytes.
            run.require(
                kept < max(n * own, 1),
                f"rank {rank}'s result has {own} bytes, but keeps {kept} bytes of memory alive. A"
                " slice is a view, which keeps the whole tensor alive. Return a copy of the slice.",
            )
        run.returns_new_memory()
        run.keeps_gradient_flags()


def _stands_alone(world, rng, function, right, *more):
    """Fail if a function returns a view of its tensor, or a tensor that requires a gradient.

    Also fail if the function changes ``requires_grad`` of its tensor. The function gets the tensor
    and the arguments ``more``.
    """
    xs = [integers(rng, (5,)) for _ in range(2)]
    leaves = per_rank(*map(RequiresGrad, xs))
    (run,) = world(2, call(f"collectives.{function}", leaves, *more, driver="described"))
    run.returns_without_gradient(*right(xs))
    run.returns_new_memory()
    run.keeps_gradient_flags()


@number("1.2")
@weight(0.75)
def test_in_rank_order(world):
    """in_rank_order runs the action once on every rank, in rank order, and no rank returns before
    the last rank's action has ended
    """
    for n in SIZES:
        # The first ranks' actions take longest. Without barriers, the later ranks overtake them.
        actions = per_rank(
            *(Probe("action", returns=rank * 10, seconds=0.01 * (n - rank)) for rank in range(n))
        )
        # In the second call, the last rank begins 0.1 seconds before all others.
        late = {rank: Delay(until="call began", on=n - 1, then=0.1) for rank in range(n - 1)}
        requests = [
            call("collectives.in_rank_order", actions, delays=delays) for delays in ({}, late)
        ]
        # In a third call, an action lasts until all other ranks wait in a communication. If a rank
        # does not wait in a communication but only sleeps, it begins its own action too early.
        if n == 3:
            lasting = {
                rank: Delay(STANDSTILL, on=(rank + 1) % n, at="action ended") for rank in range(n)
            }
            requests.append(call("collectives.in_rank_order", actions, delays=lasting))
        for run in world(n, *requests):
            run.returns(*(rank * 10 for rank in range(n)))
            _takes_turns(run, n)


def _takes_turns(run, n):
    for rank in range(n):
        times = len(run.marks(rank, "action began"))
        run.require(times == 1, f"rank {rank} ran the action {times} times instead of once.")
    for rank in range(n if n > 1 else 0):
        run.require(
            bool(run.operations(rank)),
            f"rank {rank} communicated nothing. Waiting for some time does not make ranks act in"
            " order; barriers do.",
        )
    began = [run.passed(rank, "action began") for rank in range(n)]
    ended = [run.passed(rank, "action ended") for rank in range(n)]
    hint = mistakes.barrier_hint(
        [sum(o.kind == "barrier" for o in run.operations(rank)) for rank in range(n)]
    )
    for rank in range(1, n):
        sentence = (
            f"rank {rank}'s action began before rank {rank - 1}'s action had ended. What makes"
            f" rank {rank} wait?"
        )
        run.require(ended[rank - 1] <= began[rank], sentence + hint)
    for rank in range(n):
        sentence = (
            f"rank {rank} returned before rank {n - 1}'s action had ended. Is there a barrier after"
            " the last turn?"
        )
        run.require(ended[-1] <= run.passed(rank, "call ended"), sentence)


@number("1.3")
@weight(0.875)
def test_all_reduce_from_parts(world, rng):
    """all_reduce_from_parts returns the sum on 1 to 4 ranks for any shape, dtype and layout, even
    if n does not divide the number of elements
    """
    tensors = (
        ((8,), np.float32, None),
        ((7,), np.float64, None),
        ((1,), np.float32, None),
        ((2,), np.float64, None),
        ((4,), np.float32, None),
        ((3, 5), np.int64, ALIKE),
        ((2, 3), np.float32, MIXED),
        ((2, 2, 3), np.float64, MIXED),
        ((), np.float32, None),
    )
    for n in SIZES:
        kept = _two_calls_of(rng, n, "all_reduce_from_parts", the_sum)
        _sums(world, rng, "collectives.all_reduce_from_parts", n, tensors, kept=kept)


def the_sum(xs):
    return truth.all_reduce(xs, "sum")


def _sums(world, rng, function, n, tensors, kept=None, driver="plain", high=50):
    """Call a function that sums the ranks' tensors, judge the sums, and return the runs.

    ``tensors`` has (shape, dtype, layout) for each input. ``integers`` draws the entries of the
    inputs, from ``-high`` to ``high``. ``kept`` is a pair: a request for two further calls, and the
    expected results of these calls.
    """
    inputs = [
        [integers(rng, shape, dtype, -high, high) for _ in range(n)] for shape, dtype, _ in tensors
    ]
    given = [laid_out(xs, layout) for xs, (_, _, layout) in zip(inputs, tensors)]
    requests = [call(function, own, driver=driver) for own in given]
    runs = world(n, *requests, *(kept[:1] if kept else ()))
    for run, xs, (_, _, layout) in zip(runs, inputs, tensors):
        run.returns(
            *the_sum(xs), known_mistakes=_in_memory_order(xs, layout, the_sum) if layout else None
        )
        run.keeps_inputs()
    if kept:
        _keeps_both(runs.pop(), kept[1])
    return runs


@number("1.3")
@weight(0.5)
def test_built_from_its_parts(world, rng):
    """all_reduce_from_parts makes one reduce-scatter of the padded tensor, and then one all-gather
    of the sums
    """
    function = "collectives.all_reduce_from_parts"
    for n, length in ((2, 9), (3, 10), (4, 8)):
        shapes = [(length,), tuple(rng.integers(2, 5, int(rng.integers(2, 4))).tolist())]
        inputs = [[integers(rng, shape) for _ in range(n)] for shape in shapes]
        runs = world(n, *(call(function, per_rank(*xs)) for xs in inputs))
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
        if gathering.itemsize != x.itemsize:  # it moves a view of the bytes, for example
            gathered = round(gathered * gathering.itemsize / x.itemsize)
        run.require(
            length <= scattered <= padded,
            f"rank {rank} reduce-scattered {scattered} elements. The tensor and its padding"
            f" have {padded}. Pass all of these to the reduce-scatter. Do not pad further.",
        )
        run.require(
            length <= gathered <= padded,
            f"rank {rank}'s all-gather made {gathered} elements. The tensor and its padding"
            f" have {padded}. Gather one block from each rank: the block of sums that it got from"
            " the reduce-scatter.",
        )


@number("1.3")
@weight(0.125)
@on_gloo
def test_sum_of_parts_requires_no_gradient(world, rng):
    """all_reduce_from_parts returns a new tensor without requires_grad; its input keeps
    requires_grad
    """
    _stands_alone(world, rng, "all_reduce_from_parts", the_sum)


@number("1.4")
@weight(0.375)
def test_average_is_exact(world, rng):
    """On 1 to 4 ranks, average sums first, then divides once by n, and does not use ReduceOp.AVG"""
    # contiguous() copies a tensor of the layout ALIKE. With None, the tensor is contiguous, and
    # contiguous() returns the tensor itself.
    tensors = [((64,), layout) for layout in (ALIKE, None)]
    tensors += [((21, 3), MIXED), ((2, 3, 5), ALIKE), ((1, 7), None), ((), None)]
    # The largest entry of each dtype. Sums of four such entries have no rounding errors.
    dtypes = {np.float32: 9999, np.float64: 10**15}
    given = [
        (shape, layout, dtype, most) for dtype, most in dtypes.items() for shape, layout in tensors
    ]
    for n in SIZES:
        inputs = [
            [integers(rng, shape, d, -most, most) for _ in range(n)] for shape, _, d, most in given
        ]
        inputs += [
            [np.array([np.finfo(dtype).smallest_subnormal, 1, 2], dtype)] * n for dtype in dtypes
        ]
        layouts = [layout for _, layout, _, _ in given] + [None] * len(dtypes)
        requests = [
            call("collectives.average", laid_out(xs, layout)) for xs, layout in zip(inputs, layouts)
        ]
        kept, results = _two_calls_of(rng, n, "average", the_average)
        *runs, last = world(n, *requests, kept)
        for run, xs, layout in zip(runs, inputs, layouts):
            reciprocal = mistakes.reciprocal(truth.reduction(xs, "sum"), n)
            known = [
                {mistakes.RECIPROCAL: reciprocal, BEFORE: sum(x / n for x in xs)} for _ in range(n)
            ]
            if layout:
                known = [
                    one | more
                    for one, more in zip(known, _in_memory_order(xs, layout, the_average))
                ]
            run.returns(*the_average(xs), known_mistakes=known)
            run.keeps_inputs()
            for rank in range(n):
                used = [o.reduction for o in run.operations(rank)]
                run.require(
                    "average" not in used,
                    f"rank {rank} used ReduceOp.AVG, which some backends do not have. Sum, then"
                    " divide by n.",
                )
        _keeps_both(last, results)


def the_average(xs):
    return truth.all_reduce(xs, "average")


@number("1.4")
@weight(0.25)
def test_average_of_integers(world, rng):
    """average raises ValueError with the dtype if the tensor has an integer dtype"""
    for n in (1, 3):
        requests = [
            call("collectives.average", integers(rng, (4,), dtype), may_raise=True)
            for dtype in (np.int64, np.int32)
        ]
        for run, name in zip(world(n, *requests), ("int64", "int32")):
            run.raises_value_error(name)


@number("1.4")
@weight(0.125)
@on_gloo
def test_average_requires_no_gradient(world, rng):
    """average returns a new tensor without requires_grad; its input keeps requires_grad"""
    _stands_alone(world, rng, "average", the_average)


@number("1.5")
@weight(0.875)
def test_compute_does_not_wait(world, rng):
    """overlapped_all_reduce calls compute while the all-reduce is running, even if other ranks have
    not begun
    """
    for n in (2, 3, 4):
        # One of the tensors has one dimension, and the other one has two or three.
        wide = tuple(rng.integers(2, 5, int(rng.integers(2, 4))).tolist())
        shapes = [(5,), wide] if rng.integers(2) else [wide, (5,)]
        inputs = [[integers(rng, shape) for _ in range(n)] for shape in shapes]
        requests = []
        for early, xs in zip((0, n - 1), inputs):
            # All other ranks begin only after the early rank's compute has ended. If the early rank
            # waits for the other ranks before or in compute, its compute never ends.
            delays = {
                rank: Delay(until="compute ended", on=early) for rank in range(n) if rank != early
            }
            requests.append(
                call(
                    "collectives.overlapped_all_reduce",
                    per_rank(*xs),
                    Probe("compute", 7),
                    delays=delays,
                )
            )
        for run, xs in zip(world(n, *requests), inputs):
            run.returns(
                *[(sum(xs), 7)] * n, label="the result, [0] the sum and [1] what compute returned,"
            )
            run.waits_for_nobody(
                "the ranks waited for each other before compute began, so nothing overlaps."
                " Call compute before wait()."
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
                    " all-reduce does not overlap."
                )
                if before:
                    sentence += f" Before that, it had started: {listed(before)}."
                run.require(bool(started) and started[0].at <= began[0].at, sentence)
                early = sum(o.bytes for o in before if o.kind == "all_reduce")
                sentence = (
                    f"Before rank {rank} began to compute, it had started only: {listed(before)}."
                    f" But the tensor has {xs[0].nbytes} bytes. Start the all-reduce of the whole"
                    " tensor before you call compute."
                )
                run.require(early >= xs[0].nbytes, sentence)
                sent, enough = sum(o.traffic for o in done), 2 * (n - 1) / n * xs[0].nbytes
                sentence = (
                    f"rank {rank} sends {sent:.0f} bytes ({listed(done)}), but {enough:.0f} are"
                    " enough for the all-reduce of this tensor. Start one all-reduce, and no other"
                    " communication."
                )
                run.require(sent <= enough + 0.5, sentence)


@number("1.5")
@weight(0.375)
def test_it_waits_before_it_returns(world, rng):
    """overlapped_all_reduce does not change its input, and returns the complete sum, even on a
    rank that is far ahead of the other ranks
    """
    tensors = (
        ((3, 4), np.float64, MIXED),  # in this call, all ranks but rank 0 begin late
        ((5,), np.float32, None),
        ((1, 4), np.int64, None),
        ((2, 2, 3), np.float32, ALIKE),
        ((), np.float64, None),
    )
    function, compute = "collectives.overlapped_all_reduce", Probe("compute", "done")
    for n in SIZES:
        inputs = [[integers(rng, shape, dtype) for _ in range(n)] for shape, dtype, _ in tensors]
        late = {rank: Delay(until="call began", on=0, then=0.15) for rank in range(1, n)}
        requests = [
            call(function, laid_out(xs, layout), compute, delays={} if i else late)
            for i, (xs, (_, _, layout)) in enumerate(zip(inputs, tensors))
        ]
        kept, results = _two_calls_of(rng, n, "overlapped_all_reduce", _with_done, compute)
        *runs, last = world(n, *requests, kept)
        for run, xs, (_, _, layout) in zip(runs, inputs, tensors):
            known = _in_memory_order(xs, layout, the_sum) if layout else [{}] * n
            known = [
                {name: (total, "done") for name, total in of_rank.items()} for of_rank in known
            ]
            run.returns(*_with_done(xs), known_mistakes=known)
            run.keeps_inputs()
        _keeps_both(last, results)


def _with_done(xs):
    return [(total, "done") for total in the_sum(xs)]


@number("1.5")
@weight(0.125)
def test_compute_may_read(world, rng):
    """The input keeps its values during the all-reduce, so compute can read it"""
    xs = [integers(rng, (2, 3)) for _ in range(2)]
    # Rank 0 reads its input only after rank 1 has the sum. By this time, an all-reduce that uses
    # rank 0's input as its buffer has overwritten this input.
    delays = {0: Delay(until="call ended", on=1, at="compute reads", then=0.1, patience=1)}
    (run,) = world(
        2,
        call(
            "collectives.overlapped_all_reduce",
            per_rank(*xs),
            driver="read_while_computing",
            delays=delays,
        ),
    )
    total = sum(xs)
    lent = (
        "`compute` read the sum instead of the input, because the all-reduce overwrote the"
        " caller's tensor. Start the all-reduce on a copy."
    )
    in_use = (
        "`compute` read the tensor while the all-reduce was using it. If the all-reduce works in"
        " the caller's tensor, start it on a copy."
    )
    known = [{lent: (total, total), in_use: (total, np.full_like(x, np.nan))} for x in xs]
    run.returns(*((total, x) for x in xs), known_mistakes=known)


@number("1.5")
@weight(0.125)
@on_gloo
def test_overlapped_sum_requires_no_gradient(world, rng):
    """overlapped_all_reduce returns a new tensor without requires_grad; its input keeps
    requires_grad
    """
    _stands_alone(world, rng, "overlapped_all_reduce", _with_done, Probe("compute", "done"))


@number("1.6")
@weight(0.25)
def test_shift_right(world, rng):
    """shift_right returns the left neighbour's tensor, small or large, on 1 to 4 ranks; each rank
    sends once
    """
    tensors = (
        ((4,), np.float32, None),
        ((3, 2), np.int64, MIXED),
        ((2, 2, 3), np.float64, ALIKE),
        ((1 << 18,), np.float32, None),
        ((), np.float32, None),
        ((1,), np.float64, None),
    )
    for n in SIZES:
        inputs = [[integers(rng, shape, dtype) for _ in range(n)] for shape, dtype, _ in tensors]
        requests = [
            call("collectives.shift_right", laid_out(xs, layout), driver="received_at_wait")
            for xs, (_, _, layout) in zip(inputs, tensors)
        ]
        kept, results = _two_calls_of(rng, n, "shift_right", shifted)
        *runs, last = world(n, *requests, kept)
        for run, xs, (_, _, layout) in zip(runs, inputs, tensors):
            known = _in_memory_order(xs, layout, shifted) if layout else [{}] * n
            if n > 2:
                wrong_way = (
                    "this is the right neighbour's tensor. Send to the right, and receive from the"
                    " left"
                )
                known = [
                    of_rank | {wrong_way: xs[(rank + 1) % n]} for rank, of_rank in enumerate(known)
                ]
            run.returns(*shifted(xs), known_mistakes=known)
            run.keeps_inputs()
            if n > 1:
                _sends_once(run, xs)
        _keeps_both(last, results)


def shifted(xs):
    return [xs[rank - 1] for rank in range(len(xs))]


def _sends_once(run, xs):
    n = len(xs)
    run.uses_only("send", "recv", because=NEIGHBOURS)
    for rank in range(n):
        # Compare bytes, not elements: a program may send another view of the same memory.
        sends = [(o.peer, o.bytes) for o in run.operations(rank) if o.kind == "send"]
        told = " and ".join(f"{size} bytes to rank {peer}" for peer, size in sends) or "nothing"
        right, due = (rank + 1) % n, xs[rank].nbytes
        sentence = f"Send the whole tensor ({due} bytes) to rank {right} once, and nothing else."
        run.require(sends == [(right, due)], f"rank {rank} sent {told}. {sentence}")


@number("1.6")
@weight(0.125)
def test_the_send_has_ended(world, rng):
    """If the caller overwrites the input after shift_right returns, a late neighbour still gets the
    original values
    """
    for n in (2, 3):
        xs = [integers(rng, (5,)) for _ in range(n)]
        late = {1: Delay(until="", on=0, patience=1)}
        requests = call(
            "collectives.shift_right",
            per_rank(*xs),
            driver="overwritten_after",
            after=99,
            delays=late,
        )
        (run,) = world(n, requests)
        early = (
            "the message was overwritten: the send was still under way when the function"
            " returned. Call wait() before you return"
        )
        run.returns(*shifted(xs), known_mistakes=[{early: np.full_like(x, 99)} for x in xs])


@number("1.6")
@weight(0.125)
def test_shift_right_at_the_same_time(world, rng):
    """shift_right: if one rank begins late, other ranks send before it begins (3 and 4 ranks)"""
    for n in (3, 4):
        _send_at_the_same_time(world, rng, "shift_right", n, shifted)


def _send_at_the_same_time(world, rng, function, n, right):
    """Fail if all ranks wait for one rank before they send.

    In the first call, no rank is late. In each further call, a different rank is late: it begins
    only when all other ranks wait. If neighbours take turns and even ranks send first, some other
    rank has sent before the late rank begins. But in a wrong ring, one rank sends first, and all
    other ranks receive before they send. In the call in which this first rank is late, no other
    rank has sent before it begins.
    """
    inputs = [[integers(rng, (2 * n,)) for _ in range(n)] for _ in range(n + 1)]
    delays = [{}, *({late: Delay(STANDSTILL, on=(late + 1) % n)} for late in range(n))]
    requests = [
        call(f"collectives.{function}", per_rank(*xs), delays=delay)
        for xs, delay in zip(inputs, delays)
    ]
    for late, (run, xs) in enumerate(zip(world(n, *requests), inputs), start=-1):
        run.returns(*right(xs))
        # All ranks make a process group together, so they may have waited for the late rank there.
        if late < 0 or any(run.groups_made(rank) for rank in range(n)):
            continue
        began = run.passed(late, "call began")
        early = [
            o
            for rank in range(n)
            for o in run.operations(rank)
            if rank != late and o.kind == "send" and o.at < began
        ]
        run.require(
            bool(early),
            f"rank {late} of {n} began late in this call, and until then no other rank sent"
            f" anything. Likely: rank {late} sends first, and all other ranks receive before they"
            " send. Then only one rank sends at a time, and a step takes n times as long."
            " dist.batch_isend_irecv lets all ranks send at the same time.",
        )


@number("1.6")
@weight(0.0625)
@in_strict_order
def test_shift_right_in_the_order_of_gpus(world, rng):
    """shift_right works without deadlock on 3 and 4 ranks if a rank's operations run in order, as
    on GPUs
    """
    for n in (3, 4):
        xs = [integers(rng, (2, 3)) for _ in range(n)]
        (run,) = world(n, call("collectives.shift_right", per_rank(*xs)))
        run.returns(*shifted(xs))
        _sends_once(run, xs)


@number("1.6")
@weight(0.125)
@on_gloo
def test_neighbours_tensor_requires_no_gradient(world, rng):
    """shift_right returns a new tensor without requires_grad; its input keeps requires_grad"""
    _stands_alone(world, rng, "shift_right", shifted)


@number("1.7")
@weight(1.875)
def test_ring_values(world, rng):
    """ring_all_reduce returns the sum and does not change its input, also in a second call (1 to 4
    ranks; any shape, dtype and layout)
    """
    tensors = (
        ((12,), np.float32, None),
        ((7,), np.float64, None),
        ((1,), np.float32, None),
        ((2,), np.int64, None),
        ((4,), np.float64, None),
        ((3, 5), np.float32, ALIKE),
        ((2, 3), np.int64, MIXED),
        ((2, 2, 3), np.float64, MIXED),
        ((), np.float64, None),
        ((12,), np.float32, None),
    )
    for n in SIZES:
        kept = _two_calls_of(rng, n, "ring_all_reduce", the_sum)
        for run in _ring_sums(world, rng, n, tensors, kept):
            run.uses_only("send", "recv", because=RING)


def _ring_sums(world, rng, n, tensors, kept=None, high=50):
    return _sums(
        world,
        rng,
        "collectives.ring_all_reduce",
        n,
        tensors,
        kept,
        driver="received_at_wait",
        high=high,
    )


@number("1.7")
@weight(0.125)
@on_gloo
def test_ring_sum_requires_no_gradient(world, rng):
    """ring_all_reduce returns a new tensor without requires_grad; its input keeps requires_grad"""
    _stands_alone(world, rng, "ring_all_reduce", the_sum)


@number("1.7")
@weight(0.125)
@in_strict_order
def test_ring_in_the_order_of_gpus(world, rng):
    """ring_all_reduce works without deadlock on 3 and 4 ranks if a rank's operations run in order,
    as on GPUs
    """
    for n in (3, 4):
        (run,) = _ring_sums(world, rng, n, [((7,), np.float32, None)])
        run.uses_only("send", "recv", because=RING)


@number("1.7")
@weight(1.25)
def test_ring_traffic(world, rng):
    """ring_all_reduce passes chunks round the ring: each rank sends at most 2(n−1) chunks, each 1/n
    of the tensor (2 to 5 ranks)
    """
    cases = (2, (8,)), (3, (10, 4096, 2)), (4, (7, 4096, 3, 1)), (5, (11, 4096, 2))
    for n, lengths in cases:
        lengths = (*lengths, int(rng.integers(n, 64)))
        # These integers have 61 bits, so they cannot travel in fewer bytes.
        tensors = [((length,), np.int64, None) for length in lengths]
        # Rows are not chunks: n does not have to divide the number of rows.
        tensors.append(((int(rng.integers(1, n)), int(rng.integers(n, 64))), np.int64, None))
        runs = _ring_sums(world, rng, n, tensors, high=1 << 60)
        for run, length in zip(runs, [math.prod(shape) for shape, *_ in tensors]):
            run.uses_only("send", "recv", because=RING)
            for rank in range(n):
                _sends_chunks(run, rank, n, length)
            _goes_round(run, n)


def _sends_chunks(run, rank, n, length):
    """Fail unless a rank sends chunks of the tensor, and only to its neighbours.

    Each send may have at most one chunk, and all sends of the rank together at most 2(n−1) chunks.
    The rank must also send at least its share. Otherwise another rank has to send more.
    """
    sends = [o for o in run.operations(rank) if o.kind == "send"]
    strangers = [o.peer for o in sends if o.peer not in ((rank + 1) % n, (rank - 1) % n)]
    run.require(
        not strangers,
        f"rank {rank} sent to rank {strangers[0] if strangers else 0}, which is not its neighbour.",
    )
    sentence = f"rank {rank} sent nothing: in a ring, every rank passes chunks on."
    run.require(bool(sends) or length < n, sentence)
    largest = -(-max((o.bytes for o in sends), default=0) // 8)  # rounded up to whole elements
    chunk = -(-length // n)
    sentence = (
        f"rank {rank} sent {largest} of {length} elements at once. In each step of the ring, a"
        " rank sends one chunk:"
    )
    run.require(largest <= chunk, f"{sentence} 1/n of the tensor, here at most {chunk} elements.")
    total, most = sum(o.bytes for o in sends), 2 * (n - 1) * chunk * 8
    least = 2 * (n - 1) * (length // n) * 8
    sentence = (
        f"rank {rank} sent {total} bytes; a ring needs {most} bytes: 2(n−1) chunks of 1/n of the"
        " tensor."
    )
    run.require(least <= total <= most, sentence)


def _goes_round(run, n):
    """Fail unless, in each of the two phases, all ranks send in the same direction.

    Every rank must have sent to its neighbours only. A rank that sends 2(n−1) times has phases of
    n−1 sends. A rank that leaves out empty chunks may have shorter phases.
    """
    if n == 2:  # the right neighbour is also the left one
        return
    ways = [
        ["right" if o.peer == (rank + 1) % n else "left" for o in own if o.kind == "send"]
        for rank, own in enumerate(run.operations(rank) for rank in range(n))
    ]
    advice = (
        " A ring has two phases of n−1 steps. In each phase, all ranks send in the same"
        " direction. Likely: ranks exchange chunks directly, and do not pass them on. In each"
        " step, send to the right neighbour the chunk that came from the left neighbour in the"
        " previous step."
    )
    for rank, own in enumerate(ways):
        order = ", ".join(own)
        sentence = f"rank {rank} of {n} sent to these neighbours, in this order: {order}.{advice}"
        run.require(sum(a != b for a, b in pairwise(own)) <= 1, sentence)
        is_whole = len(own) == 2 * (n - 1) and len(set(own)) == 2
        run.require(not is_whole or own[n - 2] != own[n - 1], sentence)
    for phase, at in (("first", 0), ("last", -1)):
        found = {rank: own[at] for rank, own in enumerate(ways) if len(own) == 2 * (n - 1)}
        for rank, way in found.items():
            one, its = next(iter(found.items()))
            sentence = (
                f"in the {phase} phase, rank {one} sent to its {its} neighbour, and rank {rank} to"
                f" its {way} neighbour.{advice}"
            )
            run.require(way == its, sentence)


@number("1.7")
@weight(0.125)
def test_ring_at_the_same_time(world, rng):
    """ring_all_reduce: if one rank begins late, other ranks send before it begins (3 and 4
    ranks)
    """
    for n in (3, 4):
        _send_at_the_same_time(world, rng, "ring_all_reduce", n, the_sum)


@number("1.7")
@weight(0.375)
def test_ring_steps(world, rng):
    """ring_all_reduce sends at most 2(n−1) times per rank, and in the dtype of the tensor; a single
    rank sends nothing
    """
    for n in SIZES:
        for dtype, high in ((np.int64, 1 << 60), (np.float32, 50)):
            (run,) = _ring_sums(world, rng, n, [((4096,), dtype, None)], high=high)
            run.uses_only("send", "recv", because=RING)
            for rank in range(n):
                _sends_few(run, rank, n, np.dtype(dtype))


def _sends_few(run, rank, n, dtype):
    """Fail if a rank sends too often, or if it sends entries with more bytes than the tensor's."""
    sends = [o for o in run.operations(rank) if o.kind == "send"]
    run.require(
        len(sends) <= 2 * (n - 1),
        f"rank {rank} sent {often(len(sends))}. Two phases of n−1 steps need {2 * (n - 1)} sends.",
    )
    wide = [o for o in sends if o.itemsize > dtype.itemsize]
    run.require(
        not wide,
        f"rank {rank} sends entries that have more bytes than the entries of its {dtype} tensor:"
        f" {listed(wide)}. Send chunks in the dtype of the tensor.",
    )
