"""Builds the problems for the checks of part 6, with each rank's arguments and right results.

This module also has what the checks of problems 6.3 and 6.4 share.
"""

from dataclasses import replace
from functools import cached_property

import numpy as np

from grader.check.api import Delay, Probe, Strided, Tolerance, call, per_rank, rounding
from grader.hidden.given_tensors import drawn_weights, rank_layout
from grader.hidden.sharded_evidence import probes
from grader.reference import sharded, single_device, zero

# A relative change of the inputs by about ``CHANGE`` may change a gradient by at most ``MAX_GAIN``
# times as much. Then a rounding error of float32 in the inputs, 1.2e−7, changes the gradient by far
# less than the tolerance, 2.4e−4. Layers with more than ``MAX_WIDTH`` columns are not examined.
CHANGE, MAX_GAIN, MAX_WIDTH = 1e-6, 200, 16


def late(n):
    """Return delays that hold all ranks except rank 0 at the beginning of their call.

    The held ranks begin when rank 0 has returned, or when rank 0 waits for the held ranks. After
    one second, they begin in any case. If rank 0 does not wait, it uses data that it has not
    received yet.
    """
    return {rank: Delay(until="", on=0, patience=1) for rank in range(1, n)}


def laid_out(array, rank):
    """Return the array in a layout that differs from rank to rank."""
    return Strided(array, rank_layout(rank))


def drawn_rates(rng, n, steps, first):
    """Draw learning rates, ``[rank][step]``. The rate of the first step is always ``first``."""
    return [[first, *(first * rng.uniform(0.5, 1.5, steps - 1)).tolist()] for _ in range(n)]


def served_rates(rates, of=""):
    """Return the argument that gives each rank its learning rates of all steps except the first.

    For each of these steps, a rank gets a function that asks the judge for the rate. So no rank
    knows its rate before the step, and no rank knows the rates of other ranks. If a call has
    several such arguments, ``of`` distinguishes them.
    """
    return per_rank(
        *(
            [Probe(f"learning rate of step {k}{of}", rate) for k, rate in enumerate(own[1:], 1)]
            for own in rates
        )
    )


class ZeroProblem:
    """Weights, each rank's gradients of several steps, and calls of ``ZeroAdamW`` with them.

    The first step uses the learning rate that ``ZeroAdamW`` gets. In each later step, each rank
    has its own rate. A rank does not know its rate before the step. So the update of shard r
    depends on rank r's rate, and only rank r can compute this update.
    """

    def __init__(self, rng, n, shapes, steps=3, dtype=np.float64, lr=0.02, layouts=False):
        self.n, self.lr, self.dtype, self.layouts = n, lr, dtype, layouts
        self.weights = [np.asarray(rng.standard_normal(shape), dtype) for shape in shapes]
        self.gradients = [
            [
                [np.asarray(rng.standard_normal(shape), dtype) for shape in shapes]
                for _ in range(steps)
            ]
            for _ in range(n)
        ]
        self.steps = steps
        self.rates = drawn_rates(rng, n, steps, self.rate)
        self.bytes = sharded.flat(self.weights, n).nbytes  # of the padded weights

    def request(self, **options):
        def lay(array, rank):
            return laid_out(array, rank) if self.layouts else array

        weights = per_rank(*([lay(w, rank) for w in self.weights] for rank in range(self.n)))
        gradients = per_rank(
            *(
                [[lay(g, rank) for g in step] for step in self.gradients[rank]]
                for rank in range(self.n)
            )
        )
        named = {} if self.lr is None else {"lr": self.lr}
        name = "sharded_data_parallel.ZeroAdamW"
        own = served_rates(self.rates)
        return call(name, weights, gradients, own, driver="zero_steps", **named, **options)

    @property
    def rate(self):
        return 1e-3 if self.lr is None else self.lr

    @cached_property
    def after(self):
        """Return the weights after each step, and the two moments of each rank's shard."""
        return zero.trained(self.weights, zero.averages(self.gradients), self.rates)

    @property
    def weights_after(self):
        return [[np.asarray(w, self.dtype) for w in step] for step in self.after[0]]

    def moment(self, which):
        """Return each rank's shard of a moment: the first if ``which`` is 0, the second if 1."""
        return [np.asarray(of_rank[which], self.dtype) for of_rank in self.after[1]]

    def mistakes(self):
        return zero.zero_mistakes(self.weights, self.gradients, self.rates)

    def state_mistakes(self, which):
        return zero.state_mistakes(self.weights, self.gradients, self.rates, which)

    @property
    def tolerance(self):
        if self.dtype == np.float64:
            return Tolerance(1e-9, "a few AdamW steps in float64")
        return rounding(self.dtype)


class ShardedProblem:
    """A model and its batch, with each rank's rows of the batch and flat shards of the layers.

    The batch is drawn again while gelu is flat (see ``single_device.is_flat``), or while rounding
    leaves only a few right digits of a gradient.
    """

    def __init__(self, rng, n, layers=3, width=5, rows=4, dtype=np.float64):
        self.n, self.width, self.dtype = n, width, dtype
        self.weights = drawn_weights(rng, layers, width, dtype)
        self.forward = rng.uniform(0.5, 1.5, layers).tolist()
        self.backward = rng.uniform(0.5, 1.5, layers).tolist()
        while True:
            batch = rng.standard_normal((rows * n, width)).astype(dtype)
            self.batches = np.split(batch, n)
            saved = single_device.forward(self.weights, batch)[1]
            if not single_device.is_flat(saved) and not self._depends_on_rounding(rng):
                break
        self.shards = sharded.layers_of(self.weights, n)
        self.layer_bytes = sharded.layer_bytes(width, n, batch.itemsize)
        # x and z of one layer on one rank
        self.activation_bytes = 2 * self.batches[0].nbytes
        self.product = 2 * rows * width**2  # floating-point operations of one product

    def _depends_on_rounding(self, rng):
        """Return whether an averaged gradient is very sensitive to small changes of the inputs.

        Only a few digits of such a gradient are right in float32. For example, the terms of rows or
        ranks cancel, or gelu is flat in a layer with factors. An entry that is much smaller than
        the others may change by a larger fraction: see ``tolerance``. Wide layers are not examined:
        the sums in them have many terms, and a rank's shard has many entries.
        """
        if self.width > MAX_WIDTH:
            return False

        def changed(arrays):
            return [array * (1 + CHANGE * rng.standard_normal(array.shape)) for array in arrays]

        for given in ((), (self.forward, self.backward)):
            exact = self._averages(self.weights, self.batches, *given)
            least = 0.01 * max(np.abs(gradient).max() for gradient in exact)
            for _ in range(3):
                found = self._averages(changed(self.weights), changed(self.batches), *given)
                for before, after in zip(exact, found):
                    most = MAX_GAIN * CHANGE * np.maximum(np.abs(before), least)
                    if (np.abs(after - before) > most).any():
                        return True
        return False

    def _averages(self, weights, batches, *factors):
        """Return the gradients of the layers, averaged over the ranks."""
        of_ranks = sharded.local_steps(weights, batches, *factors)[1]
        return [sum(of_layer) / self.n for of_layer in zip(*of_ranks)]

    @property
    def layers(self):
        return len(self.weights)

    @cached_property
    def local(self):
        """Return each rank's own loss, and each rank's own gradients."""
        return sharded.local_steps(self.weights, self.batches)

    @cached_property
    def followed(self):
        """Return the ranks' losses and gradients as ``local`` does, but for layers with factors."""
        factors = self.forward, self.backward
        return sharded.local_steps(self.weights, self.batches, *factors)

    @property
    def gradients(self):
        return sharded.gradient_shards(self.local[1], self.dtype)

    @property
    def tolerance(self):
        """Return the tolerance for shards, which may be as short as one entry."""
        return replace(rounding(self.dtype), small=0.01)

    def arguments(self, layouts=False):
        """Return the shards and the rows, as each rank gets them."""

        def lay(array, rank):
            return laid_out(array, rank) if layouts else array

        return (
            per_rank(*([lay(s, rank) for s in self.shards[rank]] for rank in range(self.n))),
            per_rank(*(lay(self.batches[rank], rank) for rank in range(self.n))),
        )

    def step(self, layouts=False, **options):
        name = "sharded_data_parallel.fully_sharded_step"
        return call(name, *self.arguments(layouts), **options)

    def prefetched(self, layouts=False, **options):
        options = {"driver": "followed_layers"} | options
        name = "sharded_data_parallel.prefetched_step"
        followed = probes(self.forward, self.backward)
        return call(name, *self.arguments(layouts), *followed, **options)

    def has_gradients(self, run, select=lambda r: r[1], local=None, otherwise=""):
        """Fail unless every rank returned its shards of the averaged gradients.

        ``local`` has the losses and gradients of the ranks. By default, it is ``self.local``, in
        which no layer has a factor.
        """
        gradients = (local or self.local)[1]
        factors = (self.forward, self.backward) if local is self.followed else ()
        run.returns(
            *sharded.gradient_shards(gradients, self.dtype),
            tolerance=self.tolerance,
            select=select,
            label="the list of this rank's shards of the gradients",
            otherwise=otherwise,
            known_mistakes=lambda: [
                of_sum | of_step
                for of_sum, of_step in zip(
                    sharded.sharded_mistakes(gradients),
                    sharded.step_mistakes(self.weights, self.batches, *factors),
                )
            ],
        )

    def has_losses(self, run, local=None):
        """Fail unless every rank returned the loss of its own rows."""
        losses = (local or self.local)[0]
        average = {sharded.AVERAGED_LOSS: np.array(sum(losses) / self.n)} if self.n > 1 else {}
        run.returns(
            *(np.array(loss, self.dtype) for loss in losses),
            tolerance=rounding(self.dtype),
            select=lambda r: r[0],
            label="the local loss",
            known_mistakes=[average] * self.n,
        )


def sharded_problems(rng, n):
    """Return models of several sizes.

    Some need padding, and others do not. One has a single layer with a single entry.
    """
    return [
        ShardedProblem(rng, n),
        in_float32(rng, n),
        ShardedProblem(rng, n, layers=1, width=1, rows=1),  # the example in the docstring
        ShardedProblem(rng, n, layers=4, width=6, rows=1),
    ]


def in_float32(rng, n):
    """Return a model in float32.

    With this model, a check of the traffic finds ranks that send float32 numbers as float64.
    """
    return ShardedProblem(rng, n, layers=2, width=n, dtype=np.float32)


def two_steps(function, first, second):
    """Return a call that makes one step of each of two models, one after the other."""
    arguments = (
        per_rank(*([own.shards[rank], own.batches[rank]] for rank in range(first.n)))
        for own in (first, second)
    )
    return call(f"sharded_data_parallel.{function}", *arguments, driver="in_turn")


def require_first_step_kept(run, first, second):
    """Fail unless the results of each of ``two_steps`` are right after both steps."""
    both = [list(own) for own in zip(first.gradients, second.gradients)]
    overwritten = (
        "the first step's gradients were overwritten by the second step's. In each step,"
        " return new tensors"
    )
    run.returns(
        *both,
        tolerance=first.tolerance,
        select=lambda r: [own[1] for own in r],
        label="the list of the shards of two steps, read after both steps, [step][layer],",
        known_mistakes=[{overwritten: [later, later]} for _, later in both],
    )
    losses = [[np.array(own) for own in pair] for pair in zip(first.local[0], second.local[0])]
    overwritten = (
        "the first step's loss was overwritten by the second step's. In each step, return a new"
        " tensor"
    )
    run.returns(
        *losses,
        tolerance=rounding(first.dtype),
        select=lambda r: [own[0] for own in r],
        label="the list of the losses of two steps, read after both steps,",
        known_mistakes=[{overwritten: [later, later]} for _, later in losses],
    )


def require_refusal(world, rng, function):
    """Check that shards of a wrong length raise ValueError, with the numbers that do not fit."""
    for n, width, due in ((2, 5, 13), (3, 4, 6), (1, 3, 9)):
        p = ShardedProblem(rng, n, layers=3, width=width)
        cases = [(0, due - 1), (2, due + 1)]
        if n > 1:  # one rank's shard is the whole layer
            cases.append((1, width * width))
        requests = []
        for layer, length in cases:
            wrong = [
                [np.resize(s, length) if l == layer else s for l, s in enumerate(own)]
                for own in p.shards
            ]
            _, rows = p.arguments()
            requests.append(call(function, per_rank(*wrong), rows, may_raise=True))
        for run, (_, length) in zip(world(n, *requests), cases):
            given = f"a shard of {length} entries in place of {due}"
            run.raises_value_error(str(length), str(due), given=given)
