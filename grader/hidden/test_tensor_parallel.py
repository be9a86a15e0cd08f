"""Part 4 · Tensor parallelism: the hidden checks.

They compare the ranks' results with those of a single device in float64.
"""

from dataclasses import replace

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check import driver_results
from grader.check.api import (
    RequiresGrad,
    Strided,
    call,
    listed,
    on_gloo,
    per_rank,
    rounding,
)
from grader.hidden.few_operations import require_few_operations
from grader.hidden.given_tensors import drawn_weights, rank_layout
from grader.hidden.kept_memory import require_shard_alone
from grader.hidden.two_calls import in_turn, returns_both
from grader.reference import single_device
from grader.reference import tensor_parallel as parts
from grader.reference.collective_mistakes import OVERWRITTEN
from grader.reference.counting import counted, often

SIZES = (1, 2, 3, 4)
CLOSE = rounding(np.float64)
MIXED = "another on each rank"


def laid_out(array, layout, rank=0):
    """Return the array in one of the LAYOUTS. MIXED is a different layout on each rank."""
    return Strided(array, rank_layout(rank) if layout == MIXED else layout)


def large(rng):
    """Return sizes for a check that counts bytes. Weights are larger than activations.

    All tensors are so large that ranks can exchange them only by messages, and not by a side
    channel, such as the number of threads that a rank starts. One or more ranks' blocks of an
    activation never have exactly as many bytes as a weight or a shard.
    """
    width = int(rng.choice([48, 60]))
    # On n ranks, k blocks of an activation are as large as a shard if k · rows = width, and as a
    # weight if k · rows = n · width.
    rows = [r for r in range(11, 19) if not any(k * width % r == 0 for k in (1, 2, 3, 4))]
    return {"rows": int(rng.choice(rows)), "width": width}


def tall(rng):
    """Return sizes as ``large`` does, but for weights that are smaller than activations.

    So a program that always sends weights in place of activations sends too many bytes with the
    sizes of ``large``, and too few bytes with these sizes.
    """
    width = int(rng.choice([24, 36]))
    return {"rows": int(rng.integers(4 * width + 1, 4 * width + 14)), "width": width}


def traffic_problems(rng, n, depths):
    """Draw two problems whose bytes are counted. A rank must not send float32 as float64."""
    sizes = large(rng), {**tall(rng), "dtype": np.float32}
    return [Problem(rng, n, layers, **own) for layers, own in zip(depths, sizes)]


def deal_layers(rng):
    """Return a dict from each world size, 2 to 4, to a pair of numbers of layers.

    The six numbers are 2 to 7, in a drawn order. A program may give a number of layers or a world
    size special treatment. So a check tries each number of layers on one world size, and each world
    size with two numbers of layers.
    """
    return dict(zip((2, 3, 4), rng.permutation([2, 3, 4, 5, 6, 7]).reshape(3, 2).tolist()))


def rounding_of_shards(dtype):
    """Return the tolerance for shards.

    A shard may be as narrow as one column. Its gradient then depends on a single sum.
    """
    return replace(rounding(dtype), small=0.01)


def on_ranks(n, of_rank):
    return per_rank(*(of_rank(rank) for rank in range(n)))


class Problem:
    """A model, its batch, and the shards of every rank. The world size divides the width."""

    def __init__(self, rng, n, layers=3, rows=5, width=12, dtype=np.float64, padding=0):
        """Draw a model and a batch. The last ``padding`` rows of the batch are zero.

        A layer maps zero rows to zero rows. The batch is drawn again while gelu is flat: see
        ``single_device.is_flat``.
        """
        self.n, self.dtype = n, dtype
        self.weights = drawn_weights(rng, layers, width, dtype)
        self.saved = []
        while not self.saved or single_device.is_flat(self.saved):
            self.x = self._cast(rng.standard_normal((rows, width)))
            self.x[rows - padding :] = 0
            self.y, self.saved = single_device.forward(self.weights, self.x)
        self.grad_y = self._cast(rng.standard_normal((rows, width)))
        self.grad_x, self.gradients = single_device.backward(self.weights, self.saved, self.grad_y)
        self.shards = self.of_ranks(self.weights)
        self.bytes = self.x.nbytes  # of one replicated activation

    def _cast(self, value):
        return np.asarray(value, self.dtype)

    def of_ranks(self, weights):
        """Return, for each rank, its shards by columns of these weights."""
        return [
            [self._cast(parts.columns(weight, self.n)[rank]) for weight in weights]
            for rank in range(self.n)
        ]

    def saved_by(self, rank):
        return [(self._cast(x), self._cast(parts.columns(z, self.n)[rank])) for x, z in self.saved]

    def _laid_shards(self, layout):
        return on_ranks(
            self.n, lambda rank: [laid_out(shard, layout, rank) for shard in self.shards[rank]]
        )

    def forward(self, layout="contiguous", **options):
        x = on_ranks(self.n, lambda rank: laid_out(self.x, layout, rank))
        name = "tensor_parallel.tensor_parallel_forward"
        return call(name, self._laid_shards(layout), x, **options)

    def backward(self, layout="contiguous", **options):
        saved = on_ranks(
            self.n,
            lambda r: [tuple(laid_out(a, layout, r) for a in pair) for pair in self.saved_by(r)],
        )
        grad_y = on_ranks(self.n, lambda rank: laid_out(self.grad_y, layout, rank))
        name = "tensor_parallel.tensor_parallel_backward"
        return call(name, self._laid_shards(layout), saved, grad_y, **options)

    def misfits(self):
        """Yield shards that do not fit, with the numbers that the message should contain.

        Each item is for one call: the shards of every rank, and the numbers as strings.
        """
        own_columns = len(self.x[0]) // self.n
        for l in range(len(self.weights)):
            yield self._with_shard(l, lambda shard: shard[:, :-1]), (str(own_columns - 1),)
        yield self._with_shard(1, lambda shard: np.hstack([shard, shard[:, :1]])), (
            str(own_columns + 1),
        )
        yield self._with_shard(1, lambda shard: shard[:-1]), ("11", "12")

    def misfits_of(self, rows):
        """Yield shards and rows that do not fit, with the numbers that the message should contain.

        The first pair breaks only the rule about the rows of a shard. The other pairs break the
        rule about columns, too. Then the message may name D, D/n or n, so no number is required.
        """
        wider = np.hstack([rows, rows[:, :1]])
        yield ([[s[:, : 6 // self.n] for s in own] for own in self.shards], rows[:, :6]), (
            "6",
            "12",
        )
        yield (self.shards, rows[:, :7]), ()
        # D is not divisible by n, and each shard has D // n columns.
        yield ([[np.vstack([s, s[:1]]) for s in own] for own in self.shards], wider), ()

    def _with_shard(self, layer, change):
        return [[change(s) if l == layer else s for l, s in enumerate(own)] for own in self.shards]

    def on_all(self, value):
        return [self._cast(value)] * self.n

    @property
    def tolerance(self):
        return rounding_of_shards(self.dtype)

    @property
    def sizes(self):
        """Return a dict from the size in bytes to the name, for a shard and for a full weight.

        No rank should send a tensor of one of these sizes.
        """
        shard, weight_ = self.shards[0][0], self.weights[0]
        return {shard.nbytes: "a rank's shard of a weight", weight_.nbytes: "a full weight"}


def require_own_products(run, p, passes):
    """Fail if a rank computes about as many products as whole weights take.

    A forward pass needs one product for each layer, a backward pass two. A rank may compute up to
    1.5 times as much as it needs. For example, it may compute each z a second time. The meter sees
    only torch's products.
    """
    needed = passes * len(p.weights) * 2 * len(p.x) * p.shards[0][0].size
    for rank in range(p.n):
        done = sum(entry.amount for entry in run.require_products(rank, 0))
        run.require(
            done <= 1.5 * needed,
            f"rank {rank} computed products of matrices with {done} floating-point operations. The"
            f" products with its own shards take {needed}, and those with whole weights"
            f" {p.n * needed}. Multiply with the rank's shard, (D, D/{p.n}), not with a tensor"
            " that is as large as the full weight, (D, D).",
        )


def require_traffic(run, limits, sentence, when="", phase=lambda operation: True, weights=None):
    """Fail unless each rank sends as many bytes as the activations need, and sends no weights.

    ``limits`` is (least, most): the bytes that every algorithm needs, and the bytes that are
    allowed. For each operation, count the bytes that the best algorithm for this operation sends.
    ``phase`` selects the operations to count, and ``when`` names this selection in the message.
    ``weights`` is a dict such as ``Problem.sizes``. If it is given, no operation may be as large as
    a weight or a shard, and the message names the first such operation.
    """
    run.values()
    least, most = limits
    for rank in range(run.report.size):
        done = [o for o in run.operations(rank) if phase(o)]
        sent = sum(o.traffic for o in done)
        run.require_communication(rank, bool(done), when)
        found = next((o for o in done if o.bytes in (weights or {})), None)
        stays = (
            f" The {found.name} of {found.bytes} bytes is as large as {weights[found.bytes]}. Do"
            " not send weights or their gradients: they stay on their rank."
            if found
            else ""
        )
        start = f"{when}rank {rank} sends {sent:.0f} bytes"
        end = f"{sentence}{stays} (Rank {rank} issued: {listed(done)})"
        run.require(sent <= most + 0.5, f"{start}, but {most:.0f} are enough. {end}")
        run.require(
            sent >= least - 0.5,
            f"{start}, but the other ranks need at least {least:.0f} bytes from this rank. Each"
            " rank computes with its own shards only. Does this rank compute with shards of other"
            f" ranks? {end}",
        )
        run.require(not found, f"{start}. {end}")


@number("4.1")
@weight(0.5)
def test_shards(world, rng):
    """shard_columns and shard_rows return each rank's shard of square and other weights, on 1 to 4
    ranks
    """
    for n in SIZES:
        whole = [
            (rng.standard_normal((2 * n, 3 * n)), "transpose"),
            (rng.standard_normal((n, 4 * n)).astype(np.float32), "slice"),
            (rng.standard_normal((3 * n, n)), MIXED),
        ]
        given = [(w, on_ranks(n, lambda rank: laid_out(w, layout, rank))) for w, layout in whole]
        # The weight of one row is sharded only by columns. Its transpose is sharded only by rows.
        row = rng.standard_normal((1, 2 * n))
        columns = [*given, (row, row)]
        rows = [*given, (row.T, row.T)]
        runs = world(
            n,
            *(call("tensor_parallel.shard_columns", own) for _, own in columns),
            *(call("tensor_parallel.shard_rows", own) for _, own in rows),
        )
        for run, (w, _), axis in zip(runs, columns + rows, [1] * len(columns) + [0] * len(rows)):
            run.returns(*np.split(w, n, axis), known_mistakes=parts.every_nth(w, n, axis))
            run.keeps_inputs()
            for rank in range(n):
                done = run.operations(rank)
                run.require(
                    not done,
                    f"rank {rank} communicated, although every rank has the whole weight:"
                    f" {', '.join(map(str, done[:1]))}",
                )


@number("4.1")
@weight(0.5)
def test_shards_own_their_memory(world, rng):
    """A shard is a contiguous copy of 1/n of the weight: it does not keep the full weight alive,
    and later calls do not change it
    """
    for n in (2, 4, 1):
        square, row, narrow = (rng.standard_normal(shape) for shape in ((8, 8), (1, 8), (5, n)))
        given = [
            (axis, wrap, square) for axis in ("columns", "rows") for wrap in (np.array, Strided)
        ]
        # The pieces of these weights are contiguous inside the weight, so that contiguous() does
        # not copy a piece.
        given += [
            ("columns", np.array, row),
            ("rows", np.array, row.T),
            ("columns", Strided, narrow),
        ]
        requests = [
            call(f"tensor_parallel.shard_{axis}", wrap(w), driver="stored")
            for axis, wrap, w in given
        ]
        for run, (_, _, whole) in zip(world(n, *requests), given):
            run.returns(
                *[(whole.size // n,)] * n,
                select=lambda r: (driver_results.value(r).size,),
                label="the number of entries",
            )
            for rank, shard in enumerate(
                run.read(driver_results.stored, "the memory of the shard")
            ):
                most = whole.nbytes // n
                text = (
                    f"rank {rank}'s shard keeps {shard.bytes} bytes alive, but {most} are enough."
                    " Is it a view of the full weight?"
                )
                run.require(shard.bytes <= most, text)
                run.require(
                    shard.contiguous,
                    f"rank {rank}'s shard is not contiguous. Return a contiguous copy.",
                )
                run.require(
                    shard.own,
                    f"rank {rank}'s shard is a view: it shares memory with the weight. Return a"
                    " copy.",
                )
        two, axes = rng.standard_normal((2, 2 * n, 3 * n)), {"columns": 1, "rows": 0}
        pairs = [[call(f"tensor_parallel.shard_{a}", w) for w in two] for a in axes]
        for run, axis in zip(world(n, *(in_turn(n, *pair) for pair in pairs)), axes.values()):
            returns_both(run, *(np.split(w, n, axis) for w in two), "the shards")
    for axis in ("columns", "rows"):
        require_shard_alone(world, f"tensor_parallel.shard_{axis}")


@number("4.1")
@weight(0.5)
def test_shards_misuse(world, rng):
    """shard_columns and shard_rows raise ValueError with both numbers if n does not divide the
    number of columns, or of rows
    """
    for n, (rows, columns) in ((3, (10, 7)), (4, (2, 6))):
        weight_, one = rng.standard_normal((rows, columns)), rng.standard_normal((1, 1))
        by_columns, by_rows, *too_few = world(
            n,
            *(
                call(f"tensor_parallel.shard_{a}", w, may_raise=True)
                for w in (weight_, one)
                for a in ("columns", "rows")
            ),
        )
        by_columns.raises_value_error(str(columns), str(n))
        by_rows.raises_value_error(str(rows), str(n))
        for run in too_few:
            run.raises_value_error("1", str(n))


@number("4.2")
@weight(1.25)
def test_forward(world, rng):
    """On 1 to 4 ranks, every rank has the output of a single device, in float32 and float64, for
    any number of layers
    """
    for n in SIZES:
        made = [
            (Problem(rng, n), "transpose"),
            (Problem(rng, n, layers=1, dtype=np.float32), "slice"),
            (Problem(rng, n, rows=1, layers=2), "contiguous"),
            (Problem(rng, n, layers=4, padding=2), MIXED),
            (Problem(rng, n, rows=n, width=n), "contiguous"),
        ]
        for run, (p, _) in zip(world(n, *(p.forward(layout) for p, layout in made)), made):
            run.returns(
                *p.on_all(p.y),
                tolerance=p.tolerance,
                select=lambda r: r[0],
                label="the output",
                known_mistakes=lambda: [parts.forward_mistakes(p.weights, p.x, n)] * n,
            )
            saved = [p.saved_by(rank) for rank in range(n)]
            run.returns(
                *saved,
                tolerance=p.tolerance,
                select=lambda r: r[1],
                label="the list of (x, z)",
                known_mistakes=lambda: [parts.forward_saved_mistakes(own, p.y) for own in saved],
            )
            run.keeps_inputs()


@number("4.2")
@weight(0.5)
@on_gloo
def test_forward_saves(world, rng):
    """For every layer, each rank saves the replicated input x and its own columns of z = x @ W"""
    for n in (1, 2, 3):
        # There are two calls, one after the other, each with its own batch. Both results are judged
        # at the end, because the second call must not change what the first call returned.
        first, second = Problem(rng, n), Problem(rng, n)
        both = [[(p.shards[rank], p.x) for rank in range(n)] for p in (first, second)]
        name = "tensor_parallel.tensor_parallel_forward"
        (run,) = world(n, call(name, *(per_rank(*b) for b in both), driver="remembered"))
        expected = [[p.saved_by(rank) for p in (first, second)] for rank in range(n)]
        known = []
        for own in expected:
            of_calls = [
                parts.forward_saved_mistakes(saved, p.y) for saved, p in zip(own, (first, second))
            ]
            known.append({name: [of_call[name] for of_call in of_calls] for name in of_calls[0]})
            known[-1][OVERWRITTEN] = [own[1], own[1]]
        run.returns(
            *expected,
            tolerance=CLOSE,
            select=lambda r: [saved for _, saved in driver_results.results(r)],
            label="the list saved, [call][layer][x or z],",
            known_mistakes=known,
        )
        ys = [[p.y for p in (first, second)]] * n
        run.returns(
            *ys,
            tolerance=CLOSE,
            select=lambda r: [y for y, _ in driver_results.results(r)],
            label="the output, [call],",
            known_mistakes=[{OVERWRITTEN: [second.y, second.y]}] * n,
        )
        for rank, kept in enumerate(
            run.read(driver_results.kept_bytes, "the memory that the saved tensors z keep alive")
        ):
            most = sum(z.nbytes for saved in expected[rank] for _, z in saved)
            text = (
                f"the tensors z that rank {rank} saved keep {kept} bytes alive, but {most} are"
                " enough. Is each z a view of the full x @ W?"
            )
            run.require(kept <= most, text)


@number("4.2")
@weight(0.75)
def test_forward_traffic(world, rng):
    """For each layer, a rank computes with its shard, and sends the bytes of one all-gather of
    activations. It sends no weights, and does not send row by row
    """
    for n, depths in deal_layers(rng).items():
        problems = traffic_problems(rng, n, depths)
        runs = world(n, *(p.forward(driver="metered") for p in problems))
        for run, p in zip(runs, problems):
            run.returns(
                *p.on_all(p.y),
                tolerance=p.tolerance,
                select=lambda r: driver_results.value(r)[0],
                label="the output",
            )
            layers = len(p.weights)
            all_gathers = layers * p.bytes * (n - 1) / n
            sentence = (
                f"One all-gather of a rank's own columns for each of the {layers} layers is enough."
            )
            require_traffic(run, (all_gathers, all_gathers), sentence, weights=p.sizes)
            require_few_operations(run, layers, sentence)
            require_own_products(run, p, 1)


def shapes_of_gradients(shards):
    return "shards of shapes " + ", ".join(str(shard.shape) for shard in shards[0])


@number("4.2")
@weight(0.25)
def test_forward_misuse(world, rng):
    """Shards that do not fit the batch, or each other, raise ValueError with the numbers"""
    for n in (2, 3, 1):
        p = Problem(rng, n)
        cases = [(shards, p.x, words) for shards, words in p.misfits()]
        cases += [(*given, words) for given, words in p.misfits_of(p.x)]
        name = "tensor_parallel.tensor_parallel_forward"
        runs = world(
            n, *(call(name, per_rank(*shards), x, may_raise=True) for shards, x, _ in cases)
        )
        for run, (shards, x, numbers) in zip(runs, cases):
            run.raises_value_error(
                *numbers, given=f"a batch of {x.shape[1]} columns and {shapes_of_gradients(shards)}"
            )


def backward_runs(world, rng, n):
    """Run a backward pass of each of several problems. Return pairs (run, problem)."""
    made = [
        (Problem(rng, n, layers=4), "transpose"),
        (Problem(rng, n, layers=1, padding=2), "contiguous"),
        (Problem(rng, n, dtype=np.float32), "slice"),
        (Problem(rng, n, layers=2, padding=1), MIXED),
        (Problem(rng, n, rows=1), "contiguous"),
        (Problem(rng, n, rows=n, width=n), "contiguous"),
    ]
    return list(zip(world(n, *(p.backward(layout) for p, layout in made)), (p for p, _ in made)))


@number("4.3")
@weight(1.0)
def test_backward_shards(world, rng):
    """On 1 to 4 ranks, the gradients of the weights are those of a single device, sharded by
    columns
    """
    for n in SIZES:
        for run, p in backward_runs(world, rng, n):
            run.returns(
                *p.of_ranks(p.gradients),
                tolerance=p.tolerance,
                select=lambda r: r[1],
                label="the list of the shards' gradients",
                known_mistakes=lambda: parts.tensor_mistakes(p.weights, p.saved, p.grad_y, n)[1],
            )
            run.keeps_inputs()


@number("4.3")
@weight(1.0)
def test_backward_input(world, rng):
    """On 1 to 4 ranks, the gradient of x is replicated: every rank has the sum over the ranks"""
    for n in SIZES:
        for run, p in backward_runs(world, rng, n):
            run.returns(
                *p.on_all(p.grad_x),
                tolerance=p.tolerance,
                select=lambda r: r[0],
                label="the gradient of x",
                known_mistakes=lambda: parts.tensor_mistakes(p.weights, p.saved, p.grad_y, n)[0],
            )
            run.keeps_inputs()


@number("4.3")
@weight(0.5)
@on_gloo
def test_backward_twice(world, rng):
    """A second call of tensor_parallel_backward, with the same or other tensors, is right, and does
    not change the first call's gradients
    """
    first, second = Problem(rng, 2), Problem(rng, 2)
    both = (
        per_rank(*((p.shards[r], p.saved_by(r), p.grad_y) for r in range(2)))
        for p in (first, second)
    )
    (run,) = world(2, call("tensor_parallel.tensor_parallel_backward", *both, driver="in_turn"))
    expected = [
        [[p.grad_x, *p.of_ranks(p.gradients)[r]] for p in (first, second)] for r in range(2)
    ]
    label = "the list of gradients, [call][x, then each shard],"
    run.returns(
        *expected,
        tolerance=CLOSE,
        select=lambda r: [[grad_x, *own] for grad_x, own in r],
        label=label,
        known_mistakes=[{OVERWRITTEN: [own[1], own[1]]} for own in expected],
    )
    p = Problem(rng, 2)
    (run,) = world(2, p.backward(driver="twice"))
    doubled = [
        {"the second pass's gradients were added to the first's": [2 * g for g in own]}
        for own in p.of_ranks(p.gradients)
    ]
    run.returns(
        *p.of_ranks(p.gradients), tolerance=CLOSE, select=lambda r: r[1][1], known_mistakes=doubled
    )
    run.returns(
        *p.on_all(p.grad_x), tolerance=CLOSE, select=lambda r: r[1][0], label="the gradient of x"
    )


@number("4.3")
@weight(0.5)
def test_gradients_are_no_larger_than_shards(world, rng):
    """The backward pass computes with shards only, and its results keep only the gradients of x and
    of the shards alive
    """
    for n in (3, 4):
        p = Problem(rng, n)
        run, counted_run = world(n, p.backward(driver="described"), p.backward(driver="metered"))
        counted_run.values()
        require_own_products(counted_run, p, 2)
        run.returns(
            *p.of_ranks(p.gradients),
            tolerance=CLOSE,
            select=lambda r: driver_results.value(r)[1],
            label="the list of gradients",
        )
        for rank, kept in enumerate(
            run.read(driver_results.kept_bytes, "the memory that gradients keep alive")
        ):
            shards = [shard.nbytes for shard in p.shards[rank]]
            own = p.x.nbytes + sum(shards)
            # Tensors may be padded a little, or lie in one buffer. But a gradient that is a view of
            # a larger tensor keeps at least the bytes of one more shard alive.
            run.require(
                kept <= own + max(shards) / 2,
                f"rank {rank}'s gradients keep {kept} bytes alive, but only {own} bytes are needed:"
                f" {p.x.nbytes} for x's gradient, and {shards} for the shards' gradients. The"
                f" gradient of a full weight has {p.weights[0].nbytes} bytes. A slice is a view,"
                " which keeps the whole tensor alive. No rank needs a full weight's gradient.",
            )
    require_no_full_gradient(world, rng)


def require_no_full_gradient(world, rng, n=4, layers=2):
    """Fail if a backward pass makes a tensor as large as a full weight, and keeps it for a while.

    The weights are much larger than the activations. In addition to the gradients of its shards, a
    rank may have a copy of each shard and one more shard. The bytes of the tensors that are alive
    are counted after each product.
    """
    p = Problem(rng, n, layers, rows=1, width=128)
    (run,) = world(n, p.backward(driver="metered"))
    run.returns(
        *p.of_ranks(p.gradients),
        tolerance=p.tolerance,
        select=lambda r: driver_results.value(r)[1],
        label="the list of gradients",
    )
    shard, full = p.shards[0][0].nbytes, p.weights[0].nbytes
    for rank in range(n):
        most = max(entry.alive for entry in run.require_products(rank, 1))
        text = (
            f"rank {rank} had {most} bytes of new tensors alive after one of its products. The"
            f" gradients of its {layers} shards have {layers * shard} bytes together, and the"
            f" gradient of a full weight has {full} bytes. Do you make a tensor as large as a full"
            " weight? No rank needs such a tensor: compute the gradient of the shard itself."
        )
        run.require(most <= (2 * layers + 1.5) * shard + 16 * p.bytes, text)


def backward_traffic(world, rng, budget, sentence):
    """Judge the traffic of a backward pass.

    ``budget`` and ``sentence`` are functions of the number of layers. ``budget`` returns the limit,
    as a multiple of the bytes of one reduce-scatter. ``sentence`` returns the reason.
    """
    for n, depths in deal_layers(rng).items():
        problems = traffic_problems(rng, n, depths)
        label = "the list of the shards' gradients"
        for run, p in zip(world(n, *(p.backward() for p in problems)), problems):
            run.returns(
                *p.of_ranks(p.gradients), tolerance=p.tolerance, select=lambda r: r[1], label=label
            )
            layers, one = len(p.weights), p.bytes * (n - 1) / n
            # The shards' gradients need at least the reduce-scatters between the layers. Another
            # check judges x's gradient, which needs one more sum.
            limits = (layers - 1) * one, budget(layers) * one
            require_traffic(run, limits, sentence(layers), weights=p.sizes)
            require_few_operations(run, layers + 1, sentence(layers))


@number("4.3")
@weight(1.0)
def test_backward_traffic_of_all_reduces(world, rng):
    """In the backward pass of L layers, a rank sends at most the bytes of L all-reduces of
    activations. It sends no weights, and does not send row by row
    """
    backward_traffic(
        world,
        rng,
        lambda layers: 2 * layers,
        lambda layers: f"One all-reduce for each of the {layers} layers is enough.",
    )


@number("4.3")
@weight(1.5)
def test_backward_traffic_of_reduce_scatters(world, rng):
    """In the backward pass of L layers, a rank sends at most the bytes of L − 1 reduce-scatters and
    one all-reduce. It sends no weights, and does not send row by row
    """

    def sentence(layers):
        return (
            f"{counted(layers - 1, 'reduce-scatter')} between the {layers} layers and one"
            " all-reduce for the input are enough. Between two layers, a rank needs only its own"
            " columns of the sum."
        )

    backward_traffic(world, rng, lambda layers: layers - 1 + 2, sentence)


@number("4.3")
@weight(0.25)
def test_backward_misuse(world, rng):
    """A gradient that does not fit the shards raises ValueError with the numbers"""
    for n in (2, 3, 1):
        p = Problem(rng, n)
        own = per_rank(*(p.saved_by(rank) for rank in range(n)))
        name = "tensor_parallel.tensor_parallel_backward"
        cases = [(shards, p.grad_y, words) for shards, words in p.misfits()]
        cases += [(*given, words) for given, words in p.misfits_of(p.grad_y)]
        runs = world(
            n,
            *(
                call(name, per_rank(*shards), own, grad_y, may_raise=True)
                for shards, grad_y, _ in cases
            ),
        )
        for run, (shards, grad_y, numbers) in zip(runs, cases):
            run.raises_value_error(
                *numbers,
                given=f"a gradient of {grad_y.shape[1]} columns and {shapes_of_gradients(shards)}",
            )


def added_as_it_lies(partials):
    """Return, for each rank, a dict from the sentence about a mistake to the wrong sum.

    The mistake is to add the entries in the order in which they lie in memory. The sum is wrong
    because the tensors of even ranks are transposed in memory.
    """
    orders = ["C" if rank % 2 else "F" for rank in range(len(partials))]
    total = sum(partial.ravel(order) for partial, order in zip(partials, orders))
    sentence = (
        "entries were added in the order in which they lie in memory, but the layout"
        " differs between ranks. Communicate contiguous memory"
    )
    return [{sentence: total.reshape(partials[0].shape, order=order)} for order in orders]


@number("4.4")
@weight(0.75)
def test_copy_to_ranks(world, rng):
    """CopyToRanks (f) returns x unchanged in the forward pass, and sums the ranks' gradients in the
    backward pass, for any shape and layout; a later call does not change an earlier gradient
    """
    for n in SIZES:
        x, upstream = rng.standard_normal((3, 4)), [rng.standard_normal((3, 4)) for _ in range(n)]
        total, wide = sum(upstream), rng.standard_normal((2, 3, 2)).astype(np.float32)
        # The memory layout of these gradients differs between ranks.
        mixed = [own if rank % 2 else Strided(own) for rank, own in enumerate(upstream)]
        row, one = rng.standard_normal((1, 4)), np.array(1.5)
        of_ranks = on_ranks(n, lambda rank: RequiresGrad(laid_out(x, MIXED, rank)))
        name = "tensor_parallel.CopyToRanks"
        runs = world(
            n,
            call(name, RequiresGrad(x), per_rank(*upstream), driver="differentiate"),
            call(name, of_ranks, per_rank(*mixed), driver="differentiate"),
            call(name, RequiresGrad(wide), None, driver="differentiate"),
            call(
                name,
                RequiresGrad(Strided(row, "slice")),
                Strided(row, "slice"),
                driver="differentiate",
            ),
            call(name, RequiresGrad(one), one, driver="differentiate"),
            call(
                name,
                RequiresGrad(Strided(x, "transpose")),
                Strided(x, "transpose"),
                driver="differentiate",
            ),
            call(name, RequiresGrad(Strided(wide, "slice")), wide, driver="differentiate"),
        )
        values = x, x, wide, row, one, x, wide
        gradients = (
            total,
            total,
            np.full_like(wide, n),
            n * row,
            np.asarray(n * one),
            n * x,
            n * wide,
        )
        for run, value, gradient in zip(runs, values, gradients):
            known = (
                [{parts.OWN_PARTIAL: [own]} for own in upstream] if gradient is total else [{}] * n
            )
            if run is runs[1]:
                lie = [
                    {sentence: [wrong] for sentence, wrong in own.items()}
                    for own in added_as_it_lies(upstream)
                ]
                known = [a | b for a, b in zip(known, lie)]
            tolerance = rounding(value.dtype)
            run.returns(
                *[[gradient]] * n,
                tolerance=tolerance,
                select=driver_results.gradients,
                label="x's gradient",
                known_mistakes=known,
            )
            run.returns(*[value] * n, select=driver_results.value, label="f(x)")
        for run in runs[:2]:
            run.returns(
                *upstream,
                select=driver_results.upstream,
                label="grad_y after the backward pass (it must stay unchanged)",
            )
        for rank in range(n):
            sent = runs[0].issued_before(rank, "backward began")
            text = (
                f"rank {rank} communicated {often(sent)} in f's forward pass. Every rank has x"
                " already, so f returns it as it is, and sends nothing."
            )
            runs[0].require(not sent, text)
        ups = [upstream, [rng.standard_normal((3, 4)) for _ in range(n)]]
        calls = (call(name, RequiresGrad(x), per_rank(*u), driver="differentiate") for u in ups)
        totals = ([sum(own)] for own in ups)
        keeps_results(world, n, *calls, totals, "x's gradients", driver_results.gradients)


@number("4.4")
@weight(0.5)
def test_sum_over_ranks(world, rng):
    """SumOverRanks (g) sums a partial x over the ranks in the forward pass, and leaves the gradient
    as it is in the backward pass, for any shape and layout; a later call does not change an earlier
    sum
    """
    for n in SIZES:
        partials = [rng.standard_normal((3, 4)) for _ in range(n)]
        upstream = rng.standard_normal((3, 4))
        leaves = [
            per_rank(*map(RequiresGrad, partials)),
            # x is not contiguous on the ranks with even numbers
            per_rank(
                *(RequiresGrad(x if rank % 2 else Strided(x)) for rank, x in enumerate(partials))
            ),
        ]
        name, shapes = "tensor_parallel.SumOverRanks", ((), (1, 3), (2, 3, 2), (3, 4))
        layouts = "contiguous", "slice", "transpose", MIXED
        others = [
            [rng.standard_normal(shape).astype(np.float32) for _ in range(n)] for shape in shapes
        ]
        run, strided, flat, *more = world(
            n,
            *(call(name, own, upstream, driver="differentiate") for own in leaves),
            call(
                name,
                per_rank(*(RequiresGrad(t[0]) for t in partials)),
                None,
                driver="differentiate",
            ),
            *(
                call(
                    name,
                    on_ranks(n, lambda rank: RequiresGrad(laid_out(own[rank], layout, rank))),
                    on_ranks(n, lambda rank: laid_out(own[0], layout, rank)),
                    driver="differentiate",
                )
                for own, layout in zip(others, layouts)
            ),
        )
        strided.returns(
            *[sum(partials)] * n,
            tolerance=CLOSE,
            select=driver_results.value,
            label="g(x) of a non-contiguous x",
            known_mistakes=added_as_it_lies(partials),
        )
        for other, own in zip(more, others):
            tolerance = rounding(np.float32)
            other.returns(
                *[np.asarray(sum(own))] * n,
                tolerance=tolerance,
                select=driver_results.value,
                label="g(x)",
            )
            other.returns(*[[own[0]]] * n, select=driver_results.gradients, label="x's gradient")
            other.keeps_inputs()
        run.returns(
            *[sum(partials)] * n, tolerance=CLOSE, select=driver_results.value, label="g(x)"
        )
        again = {
            (
                "the gradient was summed over the ranks in the backward pass. It is"
                " replicated: every rank already has the complete gradient"
            ): [n * upstream]
        }
        run.returns(
            *[[upstream]] * n,
            tolerance=CLOSE,
            select=driver_results.gradients,
            label="x's gradient",
            known_mistakes=[again if n > 1 else {}] * n,
        )
        run.keeps_inputs()
        for rank in range(n):
            after = len(run.operations(rank)) - run.issued_before(rank, "backward began")
            text = (
                f"rank {rank} communicated {often(after)} in g's backward pass. Every rank has the"
                " complete gradient already, so this pass returns it unchanged, and sends nothing."
            )
            run.require(not after, text)
        xs = [partials, [rng.standard_normal((3, 4)) for _ in range(n)]]
        calls = (
            call(name, per_rank(*map(RequiresGrad, own)), upstream, driver="differentiate")
            for own in xs
        )
        keeps_results(world, n, *calls, map(sum, xs), "sums g(x)", driver_results.value)
        flat.returns(
            *[[np.ones(4)]] * n,
            tolerance=CLOSE,
            select=driver_results.gradients,
            label="x's gradient",
        )


def keeps_results(world, n, first, later, expected, what, select):
    """Fail if a second call on tensors of autograd changes what a first call has returned.

    ``first`` and ``later`` are requests for the two calls, with the driver ``differentiate``.
    ``expected`` has the right results of both calls. The results are the same on all ranks.
    """
    (run,) = world(n, in_turn(n, first, later, driver="differentiate_in_turn"))
    returns_both(run, *([own] * n for own in expected), what, select, tolerance=CLOSE)


@number("4.4")
@weight(0.25)
def test_f_and_g_keep_nothing(world, rng):
    """CopyToRanks (f) and SumOverRanks (g) save no tensor for their backward passes: the input is
    freed when nothing else needs it
    """
    for n in (1, 2):
        partials = [rng.standard_normal((3, 4)) for _ in range(n)]
        x = rng.standard_normal((3, 4))  # replicated
        of_g, of_f = world(
            n,
            call(
                "tensor_parallel.SumOverRanks",
                per_rank(*map(RequiresGrad, partials)),
                driver="apply_and_drop",
            ),
            call("tensor_parallel.CopyToRanks", RequiresGrad(x), driver="apply_and_drop"),
        )
        of_g.returns(
            *[sum(partials)] * n, tolerance=CLOSE, select=driver_results.value, label="g(x)"
        )
        require_nothing_kept(of_g, "the partial input", x.nbytes)
        require_nothing_kept(of_f, "the input", x.nbytes)


def require_nothing_kept(run, what, size):
    """Fail if f or g keeps its input of ``size`` bytes, or a copy of it, for its backward pass."""
    for rank, kept in enumerate(
        run.read(driver_results.is_argument_kept, "the record of whether the input is in memory")
    ):
        text = (
            f"{what} of rank {rank} is still in memory after the forward pass. Does ctx keep this"
            " input, or a view of it? The backward pass needs neither: save nothing."
        )
        run.require(not kept, text)
    for rank, beside in enumerate(
        run.read(driver_results.bytes_beside, "the memory that the forward pass leaves")
    ):
        text = (
            f"rank {rank}'s forward pass keeps {beside} bytes of tensors alive besides its output;"
            f" {what} has {size} bytes. Does ctx keep a copy of the input? The backward pass needs"
            " no copy: save nothing."
        )
        run.require(beside <= 0, text)


F_AND_G_FIRST = (
    "if the checks of CopyToRanks (f) or SumOverRanks (g) fail, too, look at those checks first."
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


def pair_call(pair, x, upstream, layout="contiguous", trained=ALL):
    def given(array, is_trained, rank):
        laid = laid_out(array, layout, rank)
        return RequiresGrad(laid) if is_trained else laid

    arguments = zip((pair.columns, pair.rows, [x] * pair.n), trained)
    own = [
        on_ranks(pair.n, lambda r: given(of_ranks[r], is_trained, r))
        for of_ranks, is_trained in arguments
    ]
    return call("tensor_parallel.megatron_pair", *own, upstream, driver="differentiate")


@number("4.4")
@weight(1.25)
def test_megatron_pair(world, rng):
    """megatron_pair gives the output and the gradients of a single device on 1 to 4 ranks, also if
    shards or x require no gradient; a later call does not change an earlier output
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
        runs = world(n, *(pair_call(p, *own, *how) for (p, _, *how), own in zip(made, inputs)))
        for run, (pair, _, _, trained), (x, upstream) in zip(runs, made, inputs):
            judge_pair(run, pair, x, upstream, trained)
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
    note = f"; None for {' and '.join(frozen)}: no gradient is required" if frozen else ""
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
    for n in (2, 3):
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
    for n in (2, 3):
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
    as large as x, and no weights; each rank multiplies only with its own shards
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
        runs = world(
            n,
            *(pair_call(pair, *own) for (pair, _), own in zip(made, inputs)),
            *(forward_call(pair, x) for (pair, _), (x, _) in zip(made, inputs)),
        )
        for run, (pair, _), (x, upstream) in zip(runs, made, inputs):
            judge_pair(run, pair, x, upstream, ALL)
            require_pair_traffic(run, n, x)
        for run, (pair, _), (x, _) in zip(runs[len(made) :], made, inputs):
            run.values()
            needed = 2 * 2 * len(x) * pair.columns[0].size
            for rank in range(n):
                done = sum(entry.amount for entry in run.require_products(rank, 0))
                run.require(
                    done <= 1.4 * needed,
                    f"rank {rank} computed products of matrices with {done} floating-point"
                    f" operations. The products with its own two shards take {needed}. Multiply"
                    " with the rank's shards, not with tensors as large as the full weights.",
                )


def forward_call(pair, x):
    """Return a call of a pair's forward pass, whose products are metered."""
    of_ranks = (pair.columns, pair.rows)
    given = [on_ranks(pair.n, lambda rank, own=own: own[rank]) for own in of_ranks]
    return call("tensor_parallel.megatron_pair", *given, x, driver="metered")


def require_pair_traffic(run, n, x):
    """Fail unless each rank sends the bytes of one all-reduce of x forward, and of one backward."""
    run.values()
    turns = [run.passed(rank, "backward began") for rank in range(n)]
    # A ring may pad the tensor.
    limits = [2 * (n - 1) * entries * x.itemsize for entries in (x.size // n, -(-x.size // n))]
    sentence = (
        "Do not send hidden activations or weights: one all-reduce of the size of x is enough."
    )
    require_traffic(run, limits, sentence, "Forward: ", lambda o: o.at < turns[o.rank])
    require_traffic(run, limits, sentence, "Backward: ", lambda o: o.at > turns[o.rank])


@number("4.4")
@weight(0.25)
def test_megatron_pair_misuse(world, rng):
    """Shards that do not fit the batch, or each other, raise ValueError with the numbers"""
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
