"""Builds and judges a sharded model whose layers can be seen in a rank's memory, for part 6."""

from functools import cached_property

import numpy as np

from grader.check.api import (
    OVERWRITTEN_ALLOWED_BYTES,
    SETTLED,
    call,
    draw,
    imports_note,
    per_rank,
    rounding,
)
from grader.hidden.sharded_evidence import KEPT_LAYERS, imported, probes
from grader.hidden.world_sizes import drawn_sizes
from grader.reference import sharded

MIB = 2**20


def _values(result):
    """Return the loss and the numbers for the gradients that a rank sent back."""
    loss, gradients = result["value"]
    return loss, [np.array(float(number)) for number in gradients]


def _are_near(found, due):
    return len(found) == len(due) and np.allclose(found, due, rtol=1e-2, atol=0)


class LargeModel:
    """A model so large that its layers can be seen in the memory of a rank's process.

    The ranks and the judge draw the shards from seeds. All entries are independent, so a layer
    cannot be kept in fewer bytes. All entries are positive, so rounding errors stay small. Some
    layers have new weights in the backward pass: see ``renewed_layers``.
    """

    # For each width of the model: how many bytes of the memory for imports are not counted. The
    # second width is for submissions whose imports take more memory. There must be a limit, because
    # a submission could take memory for no reason during its import, and keep layers in it later.
    # Both widths are multiples of 6, so 2, 3 and 4 ranks have shards without padding.
    WIDTHS = {324: 2 << 20, 648: 16 << 20}

    @classmethod
    def weighed(cls, world, rng, function, is_followed=False):
        """Run one step of a model, and measure the ranks' memory. Return the model and the run.

        The model is wider if the submission's imports take much memory.
        """
        (n,) = drawn_sizes(rng)
        for width, bytes_of_imports in cls.WIDTHS.items():
            model = cls(rng, width, n, is_followed)
            (run,) = world(model.n, model.request(function))
            run.values()
            is_light = [
                imported(run, rank, model.shards) <= bytes_of_imports
                # A right program overwrites a quarter of the allowed bytes.
                and run.overwritten(rank, 0) <= OVERWRITTEN_ALLOWED_BYTES // 2
                for rank in range(model.n)
            ]
            if all(is_light):
                break
        return model, run

    def __init__(self, rng, width, n, is_followed=False, layers=16):
        self.n, self.layers, self.width = n, layers, width
        self.seeds = rng.integers(2**62, size=n).tolist()
        self.entries = width * width // n
        self.rows = [rng.uniform(0.5, 1.5, (1, width)) for _ in range(n)]
        self.is_followed = is_followed
        self.factors = [
            rng.uniform(0.7, 1.3, layers).tolist() if is_followed else [1.0] * layers
            for _ in range(2)
        ]
        self.layer_bytes = width * width * 8
        self.shards = layers * self.layer_bytes // n  # bytes of a rank's shards
        self.renewed = self._draw_renewed(rng)

    def _draw_renewed(self, rng):
        """Return the new weights of three layers, by layer. Programs may keep the last two layers.

        Few layers change, because the ranks get the new shards as arguments. No gradient depends on
        the weight of layer 0 in the backward pass.
        """
        given = [sharded.followed_step(self.weights, own, *self.factors) for own in self.rows]
        last = self.layers - 3
        renewed = {}
        for layer in (*(1 + rng.permutation(last - 1)[:2]).tolist(), last):
            rows = np.concatenate([own.inputs[layer] for own in given])
            # All entries of a row change alike, so their effects on a gradient do not cancel.
            noise = rng.uniform(-0.4, 0.4, (self.width, 1))
            noise = (noise + rng.uniform(-0.1, 0.1, self.weights[layer].shape)) / self.width
            renewed[layer] = sharded.renewed_weight(self.weights[layer], noise, rows)
        return renewed

    @cached_property
    def pieces(self):
        """Return the shards of the weights, indexed by ``[layer][rank]``."""
        return [
            [(1 + draw(seed, layer, self.entries) / 2) / self.width for seed in self.seeds]
            for layer in range(self.layers)
        ]

    @cached_property
    def weights(self):
        return [np.concatenate(own).reshape(self.width, self.width) for own in self.pieces]

    @cached_property
    def renewed_shards(self):
        """Return each rank's new shards, by layer."""
        cut = {layer: sharded.shards([weight], self.n) for layer, weight in self.renewed.items()}
        return [{layer: own[rank] for layer, own in cut.items()} for rank in range(self.n)]

    def request(self, function):
        followed = probes(*self.factors) if self.is_followed else ()
        return call(
            f"sharded_data_parallel.{function}",
            per_rank(*self.rows),
            *followed,
            seed=per_rank(*self.seeds),
            layers=self.layers,
            entries=self.entries,
            renewed=per_rank(*(list(own.items()) for own in self.renewed_shards)),
            driver="drawn_shards",
            weighs=SETTLED,
        )

    def has_values(self, run):
        """Fail if a loss or a gradient's shard is wrong, or if a step changed the given shards.

        The ranks send fingerprints in place of gradients: see the driver ``drawn_shards``. A step
        must not drop the shards that it got. Otherwise the rank's memory would not show how much
        memory the step needs.
        """
        later = self.renewed if run.report.on_hub else {}
        weights = [later.get(layer, weight) for layer, weight in enumerate(self.weights)]
        given = [
            sharded.followed_step(self.weights, own, *self.factors, backward_weights=weights)
            for own in self.rows
        ]
        told = [
            [np.array(sharded.fingerprint(g)) for g in own]
            for own in sharded.gradient_shards([own.gradients for own in given])
        ]
        shapes = run.read(lambda r: [list(map(int, s)) for s in r["shapes"]], "the shapes")
        for rank, own in enumerate(shapes):
            text = (
                f"rank {rank} returned shards of the gradients with the shapes {str(own)[:300]}."
                f" Expected: {self.layers} tensors with the shape ({self.entries},). The shard of a"
                " gradient must have as many entries as the shard of its weight."
            )
            run.require(own == [[self.entries]] * self.layers, text)
        run.returns(
            *((np.array(local.loss), own) for local, own in zip(given, told)),
            tolerance=rounding(np.float64),
            select=_values,
            label="the pair of [0] the local loss and [1] the list with a weighted sum of the"
            " entries of each gradient's shard,",
            # A kept layer changes these numbers only a little.
            known_mistakes=lambda: [
                {KEPT_LAYERS: own} if _are_near(own[1], due) else {}
                for own, due in zip(map(_values, run.values()), told)
            ],
        )
        self._has_shards(run)

    def _has_shards(self, run):
        """Fail if a step changed the shards of the weights that it got."""
        after = run.read(lambda r: [float(number) for number in r["shards"]], "the shards")
        for rank, numbers in enumerate(after):
            for layer, (number, own) in enumerate(zip(numbers, self.pieces, strict=True)):
                given = own[rank]
                if run.report.on_hub:
                    given = self.renewed_shards[rank].get(layer, given)
                text = (
                    f"rank {rank} changed its shard of layer {layer} (counted from 0): after the"
                    " step, the caller's tensor holds other numbers. The caller still needs the"
                    " old ones. Do not write into a shard, do not resize it, and do not free its"
                    " memory."
                )
                run.require(sharded.is_fingerprint(number, given), text)

    def require_little_memory(self, run, forward, backward):
        """Fail if a rank's process took memory for too many whole layers or whole gradients.

        The system measures this memory. A rank holds its shards of the weights and of the
        gradients. In addition, it may hold ``forward`` whole layers until the first operation of
        the backward pass, and ``backward`` whole layers in the whole step. A second measurement
        also includes data that the rank has sent but nobody has received yet, and results that the
        rank has not read yet. Its limit is two layers higher.
        """
        there = 2 * self.shards
        for rank in range(self.n):
            run.require_grown(rank, self.shards, "its shards")
            imports, left_out = imported(run, rank, self.shards), self.WIDTHS[self.width]
            turn = self._operations_forward(run.operations(rank))
            for way, operations, layers in (
                ("until the first operation of its backward pass", turn, forward),
                ("in the whole step", None, backward),
            ):
                grown = max(
                    run.grown(rank, operations) or 0,
                    (run.grown_with_network(rank, operations) or 0) - 2 * self.layer_bytes,
                )
                grown -= min(imports, left_out)
                text = (
                    f"according to the operating system, rank {rank}'s process took"
                    f" {grown / MIB:.0f} MiB {way}. The rank's shards of weights and gradients"
                    f" have {there / MIB:.0f} MiB. In addition, memory for {layers} whole layers"
                    f" of {self.layer_bytes / MIB:.1f} MiB each is enough. This memory includes"
                    " copies for communication, sent data that no rank has received yet, and"
                    " results for which the rank has not waited yet."
                )
                everything = there + 2 * self.layers * self.layer_bytes
                text += (
                    " Does something keep layers or whole gradients, as tensors, NumPy arrays or"
                    " bytes?"
                    if grown <= everything
                    else " Even all layers and all gradients together need less than that. Does"
                    " your code make an object for each entry, for example by tolist() or by a loop"
                    " over a tensor?"
                )
                text += imports_note(imports, left_out)
                most = there + layers * self.layer_bytes
                run.require(grown <= most, text)

    def _operations_forward(self, operations):
        """Return how many of a rank's first operations are needed to gather all layers once.

        Together, these operations have sent at least the bytes that the gathers of the forward pass
        need. If all operations have sent fewer bytes, return the number of all operations.
        """
        needed = self.layers * self.layer_bytes * (self.n - 1) / self.n
        sent = 0
        for number, operation in enumerate(operations):
            if sent >= needed - 0.5:
                return number
            sent += operation.traffic
        return len(operations)
