"""Problem 4.4 · The hidden checks of ``megatron_pair``, a column shard and a row shard.

They compare the ranks' results with those of a single device in float64.
``test_megatron_operators.py`` has the checks of f and g.
"""

import math

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check import driver_results
from grader.check.api import RequiresGrad, call, on_gloo
from grader.hidden.few_operations import require_few_operations
from grader.hidden.own_products import require_own_products
from grader.hidden.tensor_problem import (
    CLOSE,
    MIXED,
    keeps_results,
    laid_out,
    large,
    on_ranks,
    require_traffic,
    rounding_of_shards,
    tall,
)
from grader.hidden.world_sizes import SIZES
from grader.reference import single_device
from grader.reference import tensor_parallel as parts

F_AND_G_FIRST = (
    "the cause may be in CopyToRanks (f) or SumOverRanks (g). If their checks fail, too, look at"
    " those checks first."
)


class Pair:
    """Two layers of different widths: the first is sharded by columns, the second by rows."""

    def __init__(self, rng, n, rows=5, width=6, dtype=np.float64, hidden=2):
        self.n, self.hidden = n, hidden * n
        self.a = (rng.standard_normal((width, self.hidden)) * (2 / width) ** 0.5).astype(dtype)
        self.b = (rng.standard_normal((self.hidden, width)) * (2 / self.hidden) ** 0.5).astype(
            dtype
        )
        self.columns, self.rows = parts.columns(self.a, n), parts.rows(self.b, n)

    def inputs(self, rng, rows):
        """Return x, and the gradient of the output. They are drawn again while gelu is flat."""
        while True:
            x, upstream = (
                rng.standard_normal((rows, len(self.a))).astype(self.a.dtype) for _ in range(2)
            )
            if not single_device.is_flat(single_device.forward([self.a, self.b], x)[1]):
                return x, upstream

    def gradients(self, of_pair):
        """Return, for each rank, the gradients [of its column shard, of its row shard]."""
        of_a, of_b = of_pair
        return [
            [parts.columns(of_a, self.n)[r], parts.rows(of_b, self.n)[r]] for r in range(self.n)
        ]


ALL = (True, True, True)  # column, row and x require a gradient
FROZEN = (
    (False, False, True),
    (True, False, True),
    (False, True, True),
    (True, True, False),
    (False, False, False),
)


def pair_call(pair, x, upstream, layout="contiguous", trained=ALL, driver="differentiate"):
    def given(array, is_trained, rank):
        laid = laid_out(array, layout, rank)
        return RequiresGrad(laid) if is_trained else laid

    arguments = zip((pair.columns, pair.rows, [x] * pair.n), trained)
    own = [
        on_ranks(pair.n, lambda r: given(of_ranks[r], is_trained, r))
        for of_ranks, is_trained in arguments
    ]
    return call("tensor_parallel.megatron_pair", *own, upstream, driver=driver)


@number("4.4")
@weight(1.25)
def test_megatron_pair(world, rng):
    """megatron_pair gives the output and the gradients of a single device on 1 to 4 ranks, also if
    shards or x require no gradient; a rank computes with its shards; a later call does not change
    an earlier output
    """
    for n in SIZES:
        narrow, one_row = Pair(rng, n, hidden=3, dtype=np.float32), Pair(rng, n, hidden=1)
        made = [
            (Pair(rng, n), 5, "contiguous", ALL),
            (narrow, 5, "transpose", ALL),
            (one_row, 1, "contiguous", ALL),
            (Pair(rng, n, width=2 * n), 5, MIXED, ALL),
            (Pair(rng, n), 5, "slice", ALL),
            *((Pair(rng, n), 5, "contiguous", trained) for trained in FROZEN),
        ]
        inputs = [p.inputs(rng, rows) for p, rows, *_ in made]
        runs = world(
            n,
            *(
                pair_call(p, *own, *how, driver="differentiate_metered")
                for (p, _, *how), own in zip(made, inputs)
            ),
        )
        for run, (pair, _, _, trained), (x, upstream) in zip(runs, made, inputs):
            judge_pair(run, pair, x, upstream, trained)
            require_products_of_pair(run, pair, x)
            if n > 1:
                require_pair_traffic(run, n, x, trained)
        pair, xs = Pair(rng, n), rng.standard_normal((2, 3, 6))
        calls = (pair_call(pair, x, None, trained=FROZEN[-1]) for x in xs)
        ys = [single_device.forward([pair.a, pair.b], x)[0] for x in xs]
        keeps_results(world, n, *calls, ys, "the outputs", driver_results.value)


def judge_pair(run, pair, x, upstream, trained):
    n, dtype, tolerance = pair.n, x.dtype, rounding_of_shards(x.dtype)
    y, saved = single_device.forward([pair.a, pair.b], x)
    run.returns(
        *[y.astype(dtype)] * n,
        tolerance=tolerance,
        select=driver_results.value,
        label="the output",
        known_mistakes=lambda: parts.pair_outputs(pair.a, pair.b, x, n),
    )
    grad_x, of_pair = single_device.backward([pair.a, pair.b], saved, upstream)
    expected = [[*own, grad_x] for own in pair.gradients(of_pair)]
    frozen = [name for name, is_trained in zip(("column", "row", "x"), trained) if not is_trained]
    note = f"; None for {' and '.join(frozen)}: requires_grad is False" if frozen else ""
    run.returns(
        *(
            [g.astype(dtype) if is_trained else None for g, is_trained in zip(own, trained)]
            for own in expected
        ),
        tolerance=tolerance,
        select=driver_results.gradients,
        label=f"the list of the gradients (of column, row and x, in this order{note})",
        known_mistakes=lambda: parts.pair_mistakes(pair.a, pair.b, saved, upstream, n),
    )
    run.keeps_inputs()


@number("4.4")
@weight(0.5)
@on_gloo
def test_megatron_pairs_in_a_row(world, rng):
    """Three pairs, one after the other, have the gradients of six layers on a single device"""
    for n in (2, 3, 4):
        pairs = [Pair(rng, n) for _ in range(3)]
        x, upstream = rng.standard_normal((4, 6)), rng.standard_normal((4, 6))
        own = on_ranks(
            n,
            lambda rank: [
                (RequiresGrad(p.columns[rank]), RequiresGrad(p.rows[rank])) for p in pairs
            ],
        )
        (run,) = world(
            n,
            call(
                "tensor_parallel.megatron_pair",
                own,
                RequiresGrad(x),
                upstream,
                driver="stack_of_pairs",
            ),
        )
        weights = [weight_ for p in pairs for weight_ in (p.a, p.b)]
        y, saved = single_device.forward(weights, x)
        run.returns(*[y] * n, tolerance=CLOSE, select=driver_results.value, label="the output")
        grad_x, whole = single_device.backward(weights, saved, upstream)
        of_ranks = [p.gradients(whole[2 * i : 2 * i + 2]) for i, p in enumerate(pairs)]
        expected = [
            [grad_x, *(g for of_pair in of_ranks for g in of_pair[rank])] for rank in range(n)
        ]
        run.returns(
            *expected,
            tolerance=CLOSE,
            select=driver_results.gradients,
            label="the list of the gradients of x, column, row, column, …",
            otherwise=F_AND_G_FIRST,
        )


@number("4.4")
@weight(0.25)
def test_megatron_pair_beside_a_residual(world, rng):
    """If x is also used outside of the pair, the gradients of both uses are added, and only the
    pair's gradient is summed over the ranks
    """
    for n in (2, 3, 4):
        pair, x, upstream = Pair(rng, n), rng.standard_normal((4, 6)), rng.standard_normal((4, 6))
        own = on_ranks(
            n, lambda rank: [(RequiresGrad(pair.columns[rank]), RequiresGrad(pair.rows[rank]))]
        )
        name = "tensor_parallel.megatron_pair"
        options = {
            "driver": "stack_of_pairs",
            "residual": True,
        }
        (run,) = world(n, call(name, own, RequiresGrad(x), upstream, **options))
        y, saved = single_device.forward([pair.a, pair.b], x)
        run.returns(
            *[y + x] * n,
            tolerance=CLOSE,
            select=driver_results.value,
            label="x plus the pair's output",
        )
        grad_x, of_pair = single_device.backward([pair.a, pair.b], saved, upstream)
        expected = [[grad_x + upstream, *shards] for shards in pair.gradients(of_pair)]
        reached = (
            "the gradient of x's other use was added up over the ranks, too. Put f"
            " only between x and the pair"
        )
        none = (
            "x has only the gradient of its other use. Do the backward functions of f and g"
            " return the gradient?"
        )
        known_mistakes = [
            {reached: [grad_x + n * upstream, *shards], none: [upstream, *shards]}
            for shards in pair.gradients(of_pair)
        ]
        label = "the list of the gradients of x, column, row"
        run.returns(
            *expected,
            tolerance=CLOSE,
            select=driver_results.gradients,
            label=label,
            known_mistakes=known_mistakes,
            otherwise=F_AND_G_FIRST,
        )


@number("4.4")
@weight(1.0)
def test_megatron_pair_traffic(world, rng):
    """In the forward and in the backward pass, a pair sends the bytes of one all-reduce of a tensor
    as large as x, does not send row by row, and sends no weights; each rank multiplies only with
    its own shards
    """
    for n in (2, 3, 4):
        # A shard of a weight is larger than x in the first pair, and smaller in the second. So a
        # program that always gathers weights, instead of summing outputs, sends a wrong number of
        # bytes.
        wide, high = large(rng), tall(rng)
        hidden = int(rng.integers(36, 45)), int(rng.integers(4, 8))
        made = [(Pair(rng, n, hidden=hidden[0], width=wide["width"]), wide["rows"])]
        narrow = Pair(rng, n, hidden=hidden[1], width=high["width"], dtype=np.float32)
        made += [(narrow, high["rows"])]
        inputs = [pair.inputs(rng, rows) for pair, rows in made]
        metered = {"driver": "differentiate_metered"}
        runs = world(n, *(pair_call(p, *own, **metered) for (p, _), own in zip(made, inputs)))
        for run, (pair, _), (x, upstream) in zip(runs, made, inputs):
            judge_pair(run, pair, x, upstream, ALL)
            require_pair_traffic(run, n, x)
            require_few_operations(run, 2, "A pair needs one all-reduce in each pass.")
            require_products_of_pair(run, pair, x)


def require_products_of_pair(run, pair, x):
    """Fail if a rank computes about as many products as the whole weights take."""
    # Each of the two layers needs one product forward, and two backward.
    needed = 2 * 3 * 2 * len(x) * pair.columns[0].size
    for rank in range(pair.n):
        require_own_products(
            run,
            rank,
            needed,
            f"The products with its own two shards take {needed}. Multiply with the rank's shards,"
            " not with tensors as large as the full weights.",
        )


def require_pair_traffic(run, n, x, trained=ALL):
    """Fail unless each rank sends the bytes of one all-reduce of x forward, and of one backward.

    If x requires no gradient, the backward pass needs no all-reduce, and is not judged.
    """
    run.values()
    if not any(trained):  # there is no backward pass
        turns = [math.inf] * n
    else:
        turns = [run.passed(rank, "backward began") for rank in range(n)]
    # A ring may pad the tensor.
    limits = [2 * (n - 1) * entries * x.itemsize for entries in (x.size // n, -(-x.size // n))]
    sentence = (
        "Do not send hidden activations or weights: one all-reduce of the size of x is enough."
    )
    require_traffic(run, limits, sentence, "Forward: ", lambda o: o.at < turns[o.rank])
    if trained[-1]:
        require_traffic(run, limits, sentence, "Backward: ", lambda o: o.at > turns[o.rank])


@number("4.4")
@weight(0.25)
def test_megatron_pair_misuse(world, rng):
    """megatron_pair raises ValueError if its arguments do not fit each other; the message contains
    the sizes
    """
    column = rng.standard_normal((6, 4))
    row = rng.standard_normal((4, 6))
    x = rng.standard_normal((3, 6))
    for n in (2, 3, 1):
        cases = [
            (column, row, x[:, :5], ("5", "6")),
            (column, row, np.hstack([x, x[:, :1]]), ("7", "6")),
            (column, row[:3], x, ("4", "3")),
            (column[:, :3], row, x, ("3", "4")),
            (np.vstack([column, column[:1]]), row, x, ("6", "7")),
        ]
        runs = world(
            n,
            *(call("tensor_parallel.megatron_pair", *given, may_raise=True) for *given, _ in cases),
        )
        for run, (*_, numbers) in zip(runs, cases):
            run.raises_value_error(*numbers)
