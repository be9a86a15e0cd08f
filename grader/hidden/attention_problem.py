"""Builds the problems of 9.2, with each rank's arguments and right results."""

import numpy as np

from grader.check.api import Tolerance
from grader.hidden.sequence_problem import SharedCalls
from grader.reference import attention, attention_mistakes

# In a problem with large scores, a query's scores with one block differ by at least this much from
# its scores with another block. exp(1000) is infinite in float64.
BLOCK_SHIFT = 1000.0
# A score that a causal query must not use is larger than its other scores by about this much. A
# program that subtracts 10,000 from this score, in place of −∞, is wrong.
HIDDEN_SHIFT = 20_000.0


class AttentionProblem(SharedCalls):
    """Queries, keys and values of a sequence.

    If each rank has several rows, one query is zero, like a row of padding. All its scores are 0.
    This query is never the first one. All tensors are drawn again while all entries of a gradient
    are nearly zero on a rank: rounding errors would be as large as these entries.

    If an ``offset`` is given, scores are large: ``offset`` · factor + sign · BLOCK_SHIFT · number
    is added to each score. The factor (1/rows to 1) and the sign (0, 1 or −1) depend on the query.
    The number depends on the key's block: the blocks are numbered in a random order. So the largest
    scores of two queries differ by a large amount. The largest scores of two blocks do, too.

    In each block, one query that is not the last has one more large score: that with the last key
    of the block. This score is larger than the query's scores with all earlier keys, by about
    HIDDEN_SHIFT. If attention is causal, the query does not see the last key.
    """

    def __init__(self, rng, n, causal, rows=3, width=4, offset=0.0, dtype=np.float64, mixed=False):
        self.n, self.causal, self.dtype, self.mixed = n, causal, dtype, mixed
        self.offset = offset
        self.seen = attention.visible(rows * n, causal)
        while True:
            self.q, self.k, self.v, self.grad = (
                rng.standard_normal((rows * n, width)).astype(dtype).astype(np.float64)
                for _ in range(4)
            )
            if offset:
                self._add_offsets(rng, rows)
            elif rows > 1:
                self.q[rng.integers(1, rows * n)] = 0
            self.forwarded = attention.attention(self.q, self.k, self.v, self.seen)
            # The first token sees only itself, so its gradients of q and k are zero.
            if rows == 1 or self._smallest_gradient() > 0.01:
                break
        self.block_bytes = rows * rows * np.dtype(dtype).itemsize
        self.shard_bytes = self.q.astype(dtype).nbytes // n

    def _smallest_gradient(self):
        """Return the largest entry of the gradient whose largest entry is the smallest.

        Each rank has three gradients: those of q, k and v.
        """
        return min(np.abs(part).max() for own in self.gradients for part in own)

    def _add_offsets(self, rng, rows):
        """Set the first three columns of queries and keys, so that they make the offsets."""
        n, root = self.n, self.q.shape[1] ** 0.5
        self.q[:, 2] = self.k[:, 2] = 0
        factors = np.arange(1, rows + 1) / rows
        signs = np.resize((0, 1, -1), rows)
        for own in np.split(self.q, n):
            own[:, 0], own[:, 1] = root * rng.permutation(factors), root * rng.permutation(signs)
            own[rng.integers(rows - 1), 2] = root
        self.k[:, 0] = self.offset
        self.k[:, 1] = BLOCK_SHIFT * np.repeat(rng.permutation(n), rows)
        self.k[rows - 1 :: rows, 2] = HIDDEN_SHIFT * np.arange(1, n + 1)

    @property
    def tolerance(self):
        if self.offset:
            # A score has an error of about 1e−12. In the gradients, this error is multiplied by
            # an entry of a key, which may be as large as n · HIDDEN_SHIFT.
            return Tolerance(1e-7, "scores whose size is in the thousands, in float64", small=0.05)
        return super().tolerance

    def shards(self, *arrays):
        return [np.split(array, self.n) for array in arrays]

    @property
    def named(self):
        return f"causal={self.causal}"

    def forward(self, **options):
        shards = self.shards(self.q, self.k, self.v)
        return self.request("ring_attention_forward", *shards, plain=(self.causal,), **options)

    def backward(self, **options):
        shards = self.shards(self.q, self.k, self.v, *self.forwarded, self.grad)
        return self.request("ring_attention_backward", *shards, plain=(self.causal,), **options)

    @property
    def outputs(self):
        """Return the right results of each rank in the forward pass."""
        return self.cast(list(zip(*self.shards(*self.forwarded))))

    @property
    def gradients(self):
        """Return the right results of each rank in the backward pass."""
        given = self.q, self.k, self.v, self.grad, self.causal
        return self.cast(list(zip(*self.shards(*attention.attention_backward(*given)))))

    def has_output(self, run, select=lambda r: r):
        given = self.q, self.k, self.v, self.causal
        for index, name in enumerate(("output", "logsumexp")):
            run.returns(
                *self.cast(np.split(self.forwarded[index], self.n)),
                tolerance=self.tolerance,
                select=lambda r, index=index: select(r)[index],
                label=f"{name} ({self.named})",
                known_mistakes=lambda index=index: [
                    {name: value[index] for name, value in own.items()}
                    for own in attention_mistakes.attention_mistakes(*given, self.n)
                ],
            )

    def has_gradients(self, run, select=lambda r: r):
        given = self.q, self.k, self.v, self.grad, self.causal
        run.returns(
            *self.gradients,
            tolerance=self.tolerance,
            select=select,
            label=f"(grad_q, grad_k, grad_v), with {self.named},",
            known_mistakes=lambda: attention_mistakes.attention_backward_mistakes(*given, self.n),
        )
