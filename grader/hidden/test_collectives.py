"""Problems 1.1 and 1.2 · The hidden checks of collectives and barriers, on 1 to 4 ranks.

The checks judge every rank, with other roots, shapes, dtypes and memory layouts than the public
checks. Comparisons are exact, except those of averages: see ``collective_problem.py``.
"""

from itertools import product

import numpy as np
import pytest
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check import driver_results
from grader.check.api import (
    EXACT,
    STANDSTILL,
    Delay,
    Probe,
    call,
    on_gloo,
    per_rank,
)
from grader.hidden.collective_problem import (
    DTYPES,
    FLOATS,
    dtype_of_size,
    exact_numbers,
    few_roundings,
    forms,
    in_forms,
    in_memory_order,
    laid_out,
    leaves,
    many,
    some_shape,
)
from grader.hidden.two_calls import returns_both
from grader.hidden.world_sizes import SIZES, drawn_sizes, has_room
from grader.reference import collective_mistakes as mistakes
from grader.reference import collectives as truth
from grader.reference.counting import often

ROOTED = ("broadcast", "scatter", "gather", "reduce")
REDUCING = ("reduce", "reduce_scatter", "all_reduce")
ONE_MEMORY = "all blocks are equal. [tensor] * n is the same tensor n times: make n tensors"
BY_ENTRIES = "every n-th entry or row was taken. A block consists of consecutive entries or rows"
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


def cases(rng, collective, n, pairs, bit):
    """Yield the arguments to try on n ranks: (shape, dtype, layout, options).

    ``pairs`` is an iterator over dtypes and layouts: see ``forms``. Each operation except the sum
    is tried with every second tensor. ``bit`` is 0 or 1. It says where this begins.
    """
    roots = range(n) if collective in ROOTED else (None,)
    ops = ("sum", "max", "min", "product", "average") if collective in REDUCING else (None,)
    several = [n * rows for rows in rng.integers(2, 5, 3).tolist()]
    columns = some_shape(rng, 2)
    more = some_shape(rng, 2 + (n + bit) % 2)  # three or four dimensions
    shapes = [(several[0],), (n, columns[0]), (several[1], *more), (several[2], columns[1])]
    if collective in SHAPED:
        shapes.append(())
    tensors = [(shape, *next(pairs)) for shape in shapes]
    for i, (root, op) in enumerate(product(roots, ops)):
        for j, (shape, dtype, layout) in enumerate(tensors):
            if (
                op == "average"
                and dtype is np.int64
                or (i + j + bit) % 2
                and op not in (None, "sum")
            ):
                continue
            options = {} if root is None else {"root": root}
            yield shape, dtype, layout, options if op is None else options | {"op": op}


def large_case(rng, collective, n):
    """Return the arguments of a call with a large tensor, as ``cases`` does.

    Each of its n blocks has more than 5000 elements.
    """
    ((dtype, layout),) = forms(rng, 1)
    return (n * many(rng),), dtype, layout, some_options(rng, collective, n)


def some_options(rng, collective, n):
    """Return a drawn root, and "sum" as the operation, if the collective has these parameters."""
    return ({"root": int(rng.integers(n))} if collective in ROOTED else {}) | (
        {"op": "sum"} if collective in REDUCING else {}
    )


def request(collective, tensors, layout, options, made=laid_out, driver="plain"):
    """Return the call of a collective on these tensors, one for each rank.

    ``made`` makes the arguments: ``laid_out``, or ``leaves`` for tensors that require gradients.
    """
    if collective != "scatter":
        arguments = [made(tensors, layout)]
        return call(f"collectives.{collective}", *arguments, driver=driver, **options)
    dealt = [x if rank == options["root"] else None for rank, x in enumerate(tensors)]
    like = truth.blocks(np.zeros_like(tensors[0]), len(tensors))[0]
    return call(
        "collectives.scatter",
        made(dealt, layout),
        made([like] * len(tensors), layout),
        driver=driver,
        **options,
    )


@number("1.1")
@weight(0.4375)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_values(world, rng, collective):
    """{collective} returns the right tensors and does not change its inputs (1 to 4 ranks; all
    roots, operations, shapes, dtypes, layouts)
    """
    # On 2 to 4 ranks together there are more than nine tensors, so all pairs occur.
    pairs, bit = iter(forms(rng, 5 * len(SIZES))), int(rng.integers(2))
    dtypes, (largest,) = dtype_of_size(rng), drawn_sizes(rng)
    for n in SIZES:
        chosen = list(cases(rng, collective, n, pairs, bit))
        if n == largest:
            chosen.append(large_case(rng, collective, n))
        # Before torch 2.9, gloo's reduce-scatter always sums, whatever the operation is.
        if collective == "reduce_scatter" and world.torch < (2, 9):
            chosen = [case for case in chosen if case[-1]["op"] in ("sum", "average")]
        inputs = [
            [exact_numbers(rng, shape, dtype, o.get("op")) for _ in range(n)]
            for shape, dtype, _, o in chosen
        ]
        requests = [
            request(collective, xs, layout, o) for xs, (_, _, layout, o) in zip(inputs, chosen)
        ]
        kept, results = _two_calls(rng, collective, n, dtypes[n])
        *runs, last = world(n, *requests, kept)
        for run, xs, (_, dtype, layout, options) in zip(runs, inputs, chosen):
            # Problem 1.4 judges how an average is rounded. Here rounding errors are allowed.
            tolerance = few_roundings(dtype) if options.get("op") == "average" else EXACT
            known = _mistakes(collective, xs, layout, **options)
            run.returns(
                *getattr(truth, collective)(xs, **options),
                tolerance=tolerance,
                known_mistakes=known,
            )
            run.keeps_inputs()
        returns_both(last, *results)


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
        known = in_memory_order(
            xs, layout, lambda lying: getattr(truth, collective)(lying, **options)
        )
        summed = {mistakes.A_SUM: sum(xs)} if op not in (None, "sum", "average") else {}
        return [summed | own for own in known]
    if layout and collective == "scatter":
        return in_memory_order(truth.scatter(xs, root), layout, received=True)
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


def _two_calls(rng, collective, n, dtype):
    """Return a request that calls a collective twice, and the results of both calls.

    Each result must be new memory, so that the second call does not change the first result.
    """
    options = some_options(rng, collective, n)
    shape = 2 * n, *some_shape(rng, int(rng.integers(3)))
    pair = [[exact_numbers(rng, shape, dtype) for _ in range(n)] for _ in range(2)]
    like = [np.zeros((2, *shape[1:]), dtype)] if collective == "scatter" else []
    turns = [
        per_rank(
            *(
                [x if not like or rank == options["root"] else None, *like]
                for rank, x in enumerate(xs)
            )
        )
        for xs in pair
    ]
    request = call(f"collectives.{collective}", *turns, driver="in_turn", **options)
    return request, [getattr(truth, collective)(xs, **options) for xs in pair]


@number("1.1")
@weight(0.125)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_one_call(world, rng, collective):
    """{collective} issues one operation, the collective of the same name, and sends each element
    only to ranks that need it
    """
    for n in drawn_sizes(rng, 2, most=max((4, *_more_sizes(world)))):
        require_one_operation(world, rng, collective, n)


def _more_sizes(world):
    """Return the world sizes to try besides ``SIZES``; () if the GPUs have no room for them."""
    return (5,) if has_room(world, 5) else ()


def require_one_operation(world, rng, collective, n):
    """Fail unless a call on n ranks issues one operation: the collective, with the right size."""
    asked = []
    for options in _options_to_try(rng, collective, n, world.torch):
        is_average = options.get("op") == "average"
        pairs = forms(rng, 3, FLOATS if is_average else DTYPES)
        for dimensions, (dtype, layout) in zip(rng.permutation(3), pairs):
            shape = int(rng.integers(2, 4)) * n, *some_shape(rng, dimensions)
            asked.append((shape, dtype, layout, options))
    inputs = [
        [exact_numbers(rng, shape, dtype, options.get("op")) for _ in range(n)]
        for shape, dtype, _, options in asked
    ]
    runs = world(
        n,
        *(request(collective, xs, layout, o) for xs, (_, _, layout, o) in zip(inputs, asked)),
    )
    for run, xs, (_, dtype, _, options) in zip(runs, inputs, asked):
        tolerance = few_roundings(dtype) if options.get("op") == "average" else EXACT
        run.returns(*getattr(truth, collective)(xs, **options), tolerance=tolerance)
        run.uses_only(collective, because=f"This problem asks for the {collective} itself.")
        # The right number of elements of the operation: see ``Operation.elements``.
        size = xs[0].size
        due = {"scatter": size // n, "all_gather": size * n}.get(collective, size)
        for rank in range(n):
            calls = len(run.operations(rank))
            run.require(
                calls == 1,
                f"rank {rank} communicated {often(calls)}, but one {collective} is enough.",
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


def require_elements(run, rank, done, due, itemsize):
    """Fail unless an operation has the right number of elements, or the right number of bytes.

    A submission may move elements in another dtype, for example as a view of their bytes.
    """
    moved = done.elements * done.itemsize
    if done.itemsize == itemsize:
        numbers = f"{done.elements} elements instead of {due}"
    else:
        numbers = f"{moved:.0f} bytes instead of {due * itemsize}"
    run.require(
        done.elements == due or moved == due * itemsize,
        f"rank {rank}: {done}. For this rank, the operation moves {numbers}. Do not move an"
        " element to a rank that does not need it, or more than once.",
    )


@number("1.1")
@weight(0.0625)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_misuse(world, rng, collective):
    """{collective} raises ValueError with the value of a wrong argument, on every rank, before
    anything is sent
    """
    for n in SIZES:
        bad = [
            *misuses(rng, collective, n),
            *(misuses_of_scatter(rng, n) if collective == "scatter" else []),
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
        rows = n * int(rng.integers(4, 20)) + int(rng.integers(1, n))
        yield (np.ones((rows, 2 * n), np.float32),), good, (str(rows), str(n))
    if collective in ("gather", "all_gather", "reduce_scatter", "all_to_all"):
        yield (scalar,), good, ()
    if collective == "scatter":
        yield (per_rank(scalar, *[None] * (n - 1)),), good | {"like": scalar}, ()


def misuses_of_scatter(rng, n):
    """Return the misuses of scatter that only the root can detect, in the form of ``misuses``.

    In these calls every rank gets its own number as the root. So every rank raises an error, and no
    rank waits for another rank.
    """

    def ones(*shape):
        return np.ones(shape, np.float32)

    odd, columns = 2 * int(rng.integers(10, 40)) + 1, int(rng.integers(10, 99))
    times = int(rng.integers(3, 9))
    pairs = [  # the tensor, ``like``, and the words of the message
        (None, ones(2), ()),
        (ones(odd), ones(2), (str(odd),)),
        (ones(2 * n * times), ones(2), (str(2 * n * times),)),
        (ones(2 * n, columns), ones(2, columns - 1), (str(columns),)),
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
    """On every rank, also on the root, {collective} returns a new tensor that does not require a
    gradient and keeps no other memory alive; the input keeps requires_grad
    """
    (n,) = drawn_sizes(rng)
    options = some_options(rng, collective, n)
    ops = (
        [options | {"op": op} for op in ("sum", "average")] if collective in REDUCING else [options]
    )
    asked = []
    for options in ops:
        shapes = [(2 * n, *some_shape(rng, dimensions)) for dimensions in range(3)]
        asked += [(*tensor, options) for tensor in in_forms(rng, shapes, FLOATS)]
    inputs = [
        [exact_numbers(rng, shape, dtype, options.get("op")) for _ in range(n)]
        for shape, dtype, _, options in asked
    ]
    requests = [
        request(collective, xs, layout, options, made=leaves, driver="described")
        for xs, (_, _, layout, options) in zip(inputs, asked)
    ]
    for run, xs, (_, dtype, _, options) in zip(world(n, *requests), inputs, asked):
        results = getattr(truth, collective)(xs, **options)
        tolerance = few_roundings(dtype) if options.get("op") == "average" else EXACT
        run.returns_without_gradient(*results, tolerance=tolerance)
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


@number("1.2")
@weight(0.75)
def test_in_rank_order(world, rng):
    """in_rank_order runs the action once on every rank, in rank order, and no rank returns before
    the last rank's action has ended
    """
    for n in (*SIZES, *_more_sizes(world)):
        results = some_results(rng, 3 * n)
        own = [results[i * n : (i + 1) * n] for i in range(3)]  # of each call, for each rank
        # The lower the rank, the longer its action takes. Without barriers, a higher rank would
        # begin before a lower rank has ended.
        actions = [
            per_rank(*(Probe("action", x, 0.01 * (n - rank)) for rank, x in enumerate(of_ranks)))
            for of_ranks in own
        ]
        # In the second call, the last rank begins 0.1 seconds before all others.
        late = {rank: Delay(until="call began", on=n - 1, then=0.1) for rank in range(n - 1)}
        requests = [
            call("collectives.in_rank_order", action, delays=delays)
            for action, delays in zip(actions, ({}, late))
        ]
        # In a third call, an action lasts until all other ranks wait in a communication. If a rank
        # does not wait in a communication but only sleeps, it begins its own action too early.
        if n > 1:
            lasting = {
                rank: Delay(STANDSTILL, on=(rank + 1) % n, at="action ended") for rank in range(n)
            }
            requests.append(call("collectives.in_rank_order", actions[2], delays=lasting))
        for run, expected in zip(world(n, *requests), own):
            run.returns(*expected)
            _takes_turns(run, n)


def some_results(rng, count):
    """Return a list of results of an action, of several types. Every eight in a row are all types.

    A result can be None, False, 0 or empty. A list of numbers would be read as a tensor.
    """
    kinds = [
        int(rng.integers(1, 1000)),
        0,
        float(rng.integers(1, 1000)) / 8,
        f"text {rng.integers(1000)}",
        "",
        None,
        bool(rng.integers(2)),
        ["a list", int(rng.integers(1000)), [None]],
    ]
    order = rng.permutation(len(kinds))
    return [kinds[order[i % len(kinds)]] for i in range(count)]


def _takes_turns(run, n):
    for rank in range(n):
        times = len(run.marks(rank, "action began"))
        run.require(times == 1, f"rank {rank} ran the action {times} times instead of once.")
    for rank in range(n if n > 1 else 0):
        run.require(
            bool(run.operations(rank)),
            f"rank {rank} communicated nothing. A fixed waiting time, such as a sleep, does not"
            " guarantee the order of the ranks. Use barriers.",
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
