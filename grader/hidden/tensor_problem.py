"""Builds models and batches for the checks of part 4, with each rank's shards and right results.

This module also has the ``require_…`` functions that several files of checks share.
"""

from dataclasses import replace

import numpy as np

from grader.check.api import Strided, call, listed, per_rank, rounding
from grader.hidden.given_tensors import drawn_weights, rank_layout
from grader.hidden.own_products import require_own_products
from grader.hidden.two_calls import in_turn, returns_both
from grader.reference import single_device
from grader.reference import tensor_parallel as parts

CLOSE = rounding(np.float64)
MIXED = "another on each rank"


def laid_out(array, layout, rank=0):
    """Return the array in one of the LAYOUTS. MIXED is a different layout on each rank."""
    return Strided(array, rank_layout(rank) if layout == MIXED else layout)


def large(rng):
    """Return sizes for a check that counts bytes. Weights are larger than activations.

    All tensors are so large that ranks can exchange them only by messages, and not by a side
    channel, such as the number of threads that a rank starts. A block is a rank's columns of an
    activation. No number of such blocks has exactly as many bytes as a weight or a shard.
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
    """Draw two problems for a check that counts the bytes that ranks send.

    The second problem is in float32, because a rank must not send float32 as float64.
    """
    sizes = large(rng), {**tall(rng), "dtype": np.float32}
    return [Problem(rng, n, layers, **own) for layers, own in zip(depths, sizes)]


def deal_layers(rng):
    """Return a dict from each world size, 2 to 4, to two layer counts (depths of the model).

    Five depths are 2 to 6, and one is 7 to 9, in a drawn order. A program may give a depth or a
    world size special treatment. So a check tries each depth on one world size, and each world size
    with two depths.
    """
    depths = [2, 3, 4, 5, 6, int(rng.integers(7, 10))]
    return dict(zip((2, 3, 4), rng.permutation(depths).reshape(3, 2).tolist()))


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
        for l in (1, len(self.weights) - 1):
            yield self._with_shard(l, lambda shard: np.hstack([shard, shard[:, :1]])), (
                str(own_columns + 1),
            )
            yield self._with_shard(l, lambda shard: shard[:-1]), ("11", "12")

    def misfits_of(self, rows):
        """Yield shards and rows that do not fit, with the numbers that the message should contain.

        The first pair breaks only the rule about the rows of a shard. The other pairs break the
        rule about columns, too. Then the message may name D, D/n or n, so no number is required.
        """
        wider = np.hstack([rows, rows[:, :1]])
        narrow = 2 * self.n
        yield ([[s[:, :2] for s in own] for own in self.shards], rows[:, :narrow]), (
            str(narrow),
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


def require_products_of_shards(run, p, passes):
    """Fail if a rank computes about as many products as whole weights take.

    A forward pass needs one product for each layer, a backward pass two.
    """
    needed = passes * len(p.weights) * 2 * len(p.x) * p.shards[0][0].size
    for rank in range(p.n):
        require_own_products(
            run,
            rank,
            needed,
            f"The products with its own shards take {needed}, and the products with whole weights"
            f" take {p.n * needed}. Multiply with the rank's shard, (D, D/{p.n}), not with a tensor"
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
            " not send weights or their gradients: each rank keeps its own."
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


def each_of(layers):
    return f"each of the {layers} layers" if layers > 1 else "the only layer"


def shapes_of_gradients(shards):
    return "shards of shapes " + ", ".join(str(shard.shape) for shard in shards[0])


def keeps_results(world, n, first, later, expected, what, select):
    """Fail if a second call on tensors of autograd changes what a first call has returned.

    ``first`` and ``later`` are requests for the two calls, with the driver ``differentiate``.
    ``expected`` has the right results of both calls. The results are the same on all ranks.
    """
    (run,) = world(n, in_turn(n, first, later, driver="differentiate_in_turn"))
    returns_both(run, *([own] * n for own in expected), what, select, tolerance=CLOSE)
