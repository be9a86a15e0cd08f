"""Builds the problems for the checks of part 9, with each rank's arguments and right results."""

from copy import copy
from dataclasses import replace

import numpy as np

from grader.check import driver_results
from grader.check.api import SETTLED, Strided, Tolerance, call, listed, per_rank, rounding
from grader.hidden.given_tensors import rank_layout
from grader.hidden.two_calls import returns_both
from grader.reference import attention, attention_mistakes, experts, sequence_pair, single_device

MODULE = "sequence_and_experts"
NESTED = (list, tuple)
# In a problem with large scores, a query's scores with one block differ by at least this much from
# its scores with another block. exp(1000) is infinite in float64.
BLOCK_SHIFT = 1000.0
HIDDEN_SHIFT = 20_000.0
EQUAL = (
    "all probabilities are equal, so the right expert is the first one. max and argmax return the"
    " first of several equal numbers. sort and topk may return another one"
)
# In a problem with large logits, the gate is multiplied by this power of two, and the two largest
# logits of a token differ by at least FAR_APART. Then rounding cannot change p, which is almost 1.
LARGE_GATE, FAR_APART = 1024, 20.0
# The values that mixture_forward saves, in this order.
SAVED = ("x", "probabilities", "routes", "arrived", "z", "outputs")


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


class AttentionProblem(SharedCalls):
    """Queries, keys and values of a sequence.

    If each rank has several rows, one query is zero, like a row of padding. All its scores are 0.
    This query is never the first one. All tensors are drawn again while the gradients of a tensor
    are nearly zero on a rank: rounding errors would be as large as they are.

    If an ``offset`` is given, scores are large: ``offset`` · factor + sign · BLOCK_SHIFT · number
    is added to each score. The factor (1/rows to 1) and the sign (0, 1 or −1) depend on the query.
    The number depends on the key's block: the blocks are numbered in a random order. So the largest
    scores of two queries differ by a large amount. The largest scores of two blocks do, too. One
    query of each block, but not the last, has another large score: with the last key of its block.
    If attention is causal, the query does not see this key. The score is larger than its scores
    with all earlier keys, by about HIDDEN_SHIFT.
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
        """Return the largest entry of the tensor with the smallest gradients, on any rank."""
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
            # A score has an error of about 1e−13. In the gradients, this error is multiplied by
            # an entry of a key, which may be as large as the offset.
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


class ExpertProblem(SharedCalls):
    """A gate, experts, and tokens of each rank.

    All three are random. Tokens for which gelu is flat are left out. A draw is repeated if too few
    tokens remain, or if a wrong order of the tokens could give the right result.
    """

    def __init__(
        self,
        rng,
        n,
        counts,
        each=2,
        width=4,
        dtype=np.float64,
        mixed=False,
        only=None,
        are_logits_large=False,
    ):
        """Draw a problem.

        ``counts`` lists the number of tokens of each rank. If ``only`` is given, tokens choose
        only experts in ``only``. Large logits are in the thousands, so their exponentials are
        infinite.
        """
        self.n, self.each, self.dtype, self.mixed = n, each, dtype, mixed
        self.chosen = n * each if only is None else len(only)  # experts that may get tokens
        self.otherwise = ""  # the likely cause of a wrong y, if no other cause is found
        self.gap = FAR_APART if are_logits_large else 1e-3  # between a token's largest logits
        while True:
            self.gate = rng.standard_normal((width, n * each))
            if only is not None:
                self.gate[0] = -9.0
                self.gate[0, list(only)] = 9.0
            if are_logits_large:
                self.gate *= LARGE_GATE
            self.gate = self._exact(self.gate)
            self.weights = [
                self._exact(rng.standard_normal((width, width))) for _ in range(n * each)
            ]
            self.tokens = [self._draw_tokens(rng, count, only is not None) for count in counts]
            self.mixture = experts.Mixture(self.gate, self.weights, self.tokens)
            if [len(x) for x in self.tokens] == list(counts) and self._has_an_order():
                break
        self.grads = [self._exact(rng.standard_normal((count, width))) for count in counts]
        self.own_weights = [self.mixture.own_weights(rank) for rank in range(n)]

    def _exact(self, array):
        return array.astype(self.dtype).astype(np.float64)

    def _draw_tokens(self, rng, count, is_steered):
        """Draw ``count`` suitable tokens. Return fewer if too few of the drawn tokens are suitable.

        A token is suitable if gelu is not flat for it, and if rounding errors cannot change which
        expert it chooses. If ``is_steered`` is True, the first number of each token is at least 1.
        So the gate's first row decides between experts.
        """
        x = rng.standard_normal((3 * count, len(self.gate)))
        if is_steered:
            x[:, 0] = 1 + np.abs(x[:, 0]) / 4
        x = self._exact(x)
        logits = x @ self.gate
        best = np.sort(logits, axis=1)[:, -2:]
        z = [row @ self.weights[chosen] for row, chosen in zip(x, logits.argmax(axis=1))]
        is_clear = (
            np.ptp(best, axis=1) > self.gap if self.gate.shape[1] > 1 else np.full(len(x), True)
        )
        is_flat = [single_device.is_flat([(None, row[None])]) for row in z]
        return x[is_clear & ~np.array(is_flat, bool)][:count]

    def _has_an_order(self):
        """Return whether some rank's order of tokens differs from its inverse permutation.

        Also return True if no order can differ from its inverse. This is the case if each rank has
        fewer than three tokens, or if only one expert may get tokens.
        """
        orders = [order for order, *_ in self.mixture.routes]
        if self.chosen == 1 or max(map(len, orders)) < 3:
            return True
        return any((order != np.argsort(order)).any() for order in orders)

    def with_equal_probabilities(self):
        """Return the same problem with a gate of zeros. Then every token chooses expert 0."""
        equal = copy(self)
        equal.gate = np.zeros_like(self.gate)
        equal.otherwise = EQUAL
        equal.mixture = experts.Mixture(equal.gate, self.weights, self.tokens)
        return equal

    def with_other_weights(self, rng):
        """Return the same problem with other experts' weights, and with other gradients of y."""
        other = copy(self)
        other.weights = [self._other_weight(rng, expert) for expert in range(len(self.weights))]
        other.grads = [self._exact(rng.standard_normal(grad.shape)) for grad in self.grads]
        other.mixture = experts.Mixture(self.gate, other.weights, self.tokens)
        other.own_weights = [other.mixture.own_weights(rank) for rank in range(self.n)]
        return other

    def _other_weight(self, rng, expert):
        """Draw another weight of an expert, for which gelu is not flat with any of its tokens."""
        choices = self.mixture.choices
        own = [row for x, chosen in zip(self.tokens, choices) for row in x[chosen == expert]]
        while True:
            weight = self._exact(rng.standard_normal(self.weights[expert].shape))
            if not any(single_device.is_flat([(None, (row @ weight)[None])]) for row in own):
                return weight

    def with_half_tokens(self):
        """Return the same problem with all tokens divided by 2. Each token keeps its expert."""
        half = copy(self)
        half.tokens = [x / 2 for x in self.tokens]
        half.mixture = experts.Mixture(self.gate, self.weights, half.tokens)
        return half

    @property
    def gates(self):
        return [self.gate] * self.n

    def forward(self, **options):
        return self.request("mixture_forward", self.gates, self.own_weights, self.tokens, **options)

    def backward(self, **options):
        saved = [self.mixture.saved(rank) for rank in range(self.n)]
        of_ranks = self.gates, self.own_weights, saved, self.grads
        return self.request("mixture_backward", *of_ranks, **options)

    def has_y(self, run):
        run.returns(
            *self.cast(self.mixture.ys),
            tolerance=self.tolerance,
            select=lambda r: r[0],
            label="the tensor of the outputs of this rank's tokens",
            known_mistakes=self.mixture.forward_mistakes,
            otherwise=self.otherwise,
        )

    def has_saved(self, run):
        by_p = [{experts.SAVED_TIMES_P: y} for y in self.mixture.ys]
        for index, name in enumerate(SAVED):
            run.returns(
                *self.saved(index),
                tolerance=self.tolerance,
                select=lambda r, index=index: r[1][index],
                label=f"the saved value {name}",
                known_mistakes=by_p if name == "outputs" else None,
            )

    def saved(self, index):
        """Return part ``index`` of the tuple that each rank should save."""
        return self.cast([self.mixture.saved(rank)[index] for rank in range(self.n)])

    def has_both(self, run, later):
        """Fail unless y and the saved values of two forward passes are right after both passes.

        ``run`` is a run of a request of ``in_turn``. Its second call has the problem ``later``.
        """
        ys = (p.cast(p.mixture.ys) for p in (self, later))
        returns_both(run, *ys, "the outputs", lambda r: r[0], tolerance=self.tolerance)
        for index, name in enumerate(SAVED):
            returns_both(
                run,
                self.saved(index),
                later.saved(index),
                f"the saved values {name}",
                lambda r, index=index: r[1][index],
                tolerance=self.tolerance,
            )

    def has_gradients(self, run):
        run.returns(
            *self.cast(self.mixture.gradients(self.grads)),
            tolerance=self.tolerance,
            label="(grad_x, grad_gate, gradients)",
            known_mistakes=lambda: self.mixture.backward_mistakes(self.grads),
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
