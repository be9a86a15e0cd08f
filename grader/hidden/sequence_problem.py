"""Builds the problems of 9.1, with each rank's arguments and right results.

Also holds what all checks of part 9 share: the calls of a problem, and requirements.
"""

from copy import copy
from dataclasses import replace

import numpy as np

from grader.check import driver_results
from grader.check.api import SETTLED, Strided, call, listed, per_rank, rounding
from grader.hidden.given_tensors import rank_layout
from grader.reference import sequence_pair, single_device

MODULE = "sequence_and_experts"
NESTED = (list, tuple)


def laid_out(value, rank):
    """Return a nested value with its matrices in a layout that differs from rank to rank."""
    if isinstance(value, NESTED):
        return type(value)(laid_out(part, rank) for part in value)
    if isinstance(value, np.ndarray) and value.ndim == 2:
        return Strided(value, rank_layout(rank))
    return value


def cast(value, dtype):
    """Return a nested value with all floating-point tensors in this dtype.

    A tensor that already has this dtype is not copied, because some tensors are large.
    """
    if isinstance(value, NESTED):
        return type(value)(cast(part, dtype) for part in value)
    if isinstance(value, np.ndarray) and value.dtype.kind == "f":
        return value.astype(dtype, copy=False)
    return value


class SharedCalls:
    """Builds the calls for a problem. If ``mixed`` is True, memory layouts differ between ranks."""

    n: int
    dtype: type
    mixed: bool

    def request(self, function, *of_ranks, plain=(), **options):
        """Return a call. Each list in ``of_ranks`` has the values of one argument, one per rank.

        The arguments in ``plain`` are the same on all ranks.
        """
        given = []
        for values in of_ranks:
            own = [cast(value, self.dtype) for value in values]
            given.append(
                per_rank(*(laid_out(v, r) if self.mixed else v for r, v in enumerate(own)))
            )
        return call(f"{MODULE}.{function}", *given, *plain, **options)

    @property
    def tolerance(self):
        """Return the tolerance for results in which one tensor may be much smaller than another."""
        return replace(rounding(self.dtype), small=0.05)

    def cast(self, values):
        return [cast(value, self.dtype) for value in values]


class PairProblem(SharedCalls):
    """The two weights of a sequence-parallel pair, and a sequence.

    All of them are drawn again while gelu is flat: see ``single_device.is_flat``.
    """

    def __init__(self, rng, n, rows=3, width=4, hidden=2, dtype=np.float64, mixed=False):
        self.n, self.dtype, self.mixed = n, dtype, mixed
        saved = []
        while not saved or single_device.is_flat(saved):
            self.a, self.b, self.x, self.grad_y = (
                rng.standard_normal(shape).astype(dtype).astype(np.float64)
                for shape in (
                    (width, hidden * n),
                    (hidden * n, width),
                    (rows * n, width),
                    (rows * n, width),
                )
            )
            self._compute()
            saved = [(self.x, self.z)]
        self.pairs = list(zip(np.split(self.a, n, 1), np.split(self.b, n)))
        self.bytes = self.x.astype(dtype).nbytes  # of the whole sequence

    def _compute(self):
        self.y, self.z = sequence_pair.pair_forward(self.a, self.b, self.x)
        self.own_x = np.split(self.x, self.n)
        self.saved = list(zip(self.own_x, np.split(self.z, self.n, 1)))

    def scaled(self, factor):
        """Return the same problem with x multiplied by a number."""
        scaled = copy(self)
        scaled.x = self.x * factor
        scaled._compute()
        return scaled

    def forward_rests(self):
        """Return a call in which the hub measures how much memory a forward pass has kept."""
        name = f"{MODULE}.sequence_parallel_forward"
        return call(name, driver="rests", weighs=SETTLED)

    def forward(self, **options):
        return self.request("sequence_parallel_forward", self.pairs, self.own_x, **options)

    def backward(self, **options):
        of_ranks = self.pairs, self.saved, np.split(self.grad_y, self.n)
        return self.request("sequence_parallel_backward", *of_ranks, **options)

    @property
    def results(self):
        """Return the right results of each rank in the forward pass."""
        return list(zip(self.cast(np.split(self.y, self.n)), self.cast(self.saved)))

    @property
    def gradients(self):
        """Return the right results of each rank in the backward pass."""
        grad_x, of_a, of_b = sequence_pair.pair_backward(self.a, self.b, self.x, self.grad_y)
        of_pairs = zip(np.split(of_a, self.n, 1), np.split(of_b, self.n))
        return self.cast(list(zip(np.split(grad_x, self.n), of_pairs)))

    def has_y(self, run, select=lambda r: r[0], tolerance=None):
        run.returns(
            *self.cast(np.split(self.y, self.n)),
            tolerance=tolerance or self.tolerance,
            select=select,
            label="the tensor of this rank's rows of y",
            known_mistakes=lambda: sequence_pair.pair_mistakes(self.a, self.b, self.x, self.n),
        )

    def has_saved(self, run, select=lambda r: r[1]):
        run.returns(
            *self.cast(self.saved),
            tolerance=self.tolerance,
            select=select,
            label="the saved (x, z)",
            known_mistakes=lambda: sequence_pair.saved_mistakes(self.a, self.x, self.n),
        )

    def has_gradients(self, run, tolerance=None):
        given, tolerance = (self.a, self.b, self.x, self.grad_y), tolerance or self.tolerance
        grad_x, of_a, of_b = sequence_pair.pair_backward(*given)
        of_pairs = list(zip(np.split(of_a, self.n, 1), np.split(of_b, self.n)))
        run.returns(
            *self.cast(of_pairs),
            tolerance=tolerance,
            select=lambda r: r[1],
            label="the pair of gradients (of A, of B)",
            known_mistakes=lambda: sequence_pair.pair_backward_mistakes(*given, self.n)[1],
        )
        run.returns(
            *self.cast(np.split(grad_x, self.n)),
            tolerance=tolerance,
            select=lambda r: r[0],
            label="grad_x",
            known_mistakes=lambda: sequence_pair.pair_backward_mistakes(*given, self.n)[0],
        )


def require_no_gradient(run):
    """Fail if a rank returned a tensor that requires a gradient. The driver is ``described``."""
    found = run.read(driver_results.requires_gradient, "the results' flags requires_grad")
    for rank, has_gradient in enumerate(found):
        run.require(
            not has_gradient,
            f"rank {rank} returned a tensor that requires a gradient. Such a tensor keeps alive all"
            " tensors that autograd has saved. Compute without autograd, or return"
            " tensor.detach().",
        )


def require_no_copy_of_x(run):
    """Fail if a rank saved a copy of x, and not x itself. The driver is ``saves``."""
    copied = run.read(driver_results.is_x_copied, "whether x was copied")
    for rank, is_copied in enumerate(copied):
        run.require(
            not is_copied,
            f"rank {rank} saved a copy of x, so x is in memory twice. Put the tensor x itself into"
            " saved, even if it is not contiguous.",
        )


def require_traffic(run, most, sentence, least=0):
    """Fail if a rank sends more than ``most`` bytes, or fewer than ``least``.

    Each limit is one number for all ranks, or a list with a number for each rank. For each
    operation, count the bytes that the best algorithm for this operation sends.
    """
    run.values()
    for rank in range(run.report.size):
        own, needed = (each[rank] if isinstance(each, list) else each for each in (most, least))
        done = run.operations(rank)
        sent = sum(operation.traffic for operation in done)
        shown = f" (Rank {rank} issued: {listed(done)})" if done else ""
        text = f"rank {rank} sends {sent:.0f} bytes, but {own:.0f} are enough."
        run.require(sent <= own + 0.5, f"{text} {sentence}{shown}")
        text = f"rank {rank} sends {sent:.0f} bytes, but at least {needed:.0f} are needed."
        likely = "Does the rank use something from an earlier call?"
        run.require(sent >= needed - 0.5, f"{text} {sentence} {likely}{shown}")
