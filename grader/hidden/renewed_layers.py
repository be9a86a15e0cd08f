"""Gives layers new values between the passes of a sharded step, for problems 6.3 and 6.4.

When the backward pass begins, some shards change on all ranks: see ``rank.renewal``. Only a rank
that gathers these layers again gets the right gradients. A layer that was kept from the forward
pass is useless, even if the rank gathers the layer again for the record. The last two layers keep
their values: a rank may keep the last layer, and it may gather the one before ahead of time.

The new weights give the same z for the rows of all ranks. So a program may compute z again in the
backward pass.
"""

import numpy as np

from grader.check.api import call, per_rank
from grader.hidden.sharded_evidence import KEPT_LAYERS, probes
from grader.hidden.sharded_problem import ShardedProblem
from grader.reference import sharded


class RenewedProblem(ShardedProblem):
    """A model whose layers, except the last two, have new weights in the backward pass."""

    def __init__(self, rng, n, layers, is_followed=False):
        super().__init__(rng, n, layers=layers, width=64, rows=1)
        self.is_followed = is_followed
        ones = [1.0] * layers
        self.factors = (self.forward, self.backward) if is_followed else (ones, ones)
        given = [sharded.followed_step(self.weights, own, *self.factors) for own in self.batches]
        self.renewed = list(self.weights)
        for layer, weight in enumerate(self.weights[:-2]):
            rows = np.concatenate([own.inputs[layer] for own in given])
            self.renewed[layer] = sharded.renewed_weight(weight, rng.permutation(weight), rows)

    def request(self):
        shards = sharded.layers_of(self.renewed, self.n)
        renewed = per_rank(*(list(enumerate(own[:-2])) for own in shards))
        function = "prefetched_step" if self.is_followed else "fully_sharded_step"
        followed = probes(*self.factors) if self.is_followed else ()
        arguments = *self.arguments(), *followed
        name = f"sharded_data_parallel.{function}"
        return call(name, *arguments, renewed=renewed, driver="renewed_layers")

    def has_renewed_gradients(self, run, select):
        """Fail unless every rank returned the gradients of the layers that it gathered again."""
        weights = self.renewed if run.report.on_hub else self.weights
        given = [
            sharded.followed_step(self.weights, own, *self.factors, backward_weights=weights)
            for own in self.batches
        ]
        local = [own.loss for own in given], [own.gradients for own in given]
        self.has_gradients(run, select, local, otherwise=KEPT_LAYERS)
