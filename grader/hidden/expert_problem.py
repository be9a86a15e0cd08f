"""Builds the problems of 9.3, with each rank's arguments and right results."""

from copy import copy

import numpy as np

from grader.hidden.sequence_problem import SharedCalls
from grader.hidden.two_calls import returns_both
from grader.reference import experts, single_device

# In a problem with large logits, the gate is multiplied by this power of two, and the two largest
# logits of a token differ by at least FAR_APART. Then rounding cannot change p, which is almost 1.
LARGE_GATE, FAR_APART = 1024, 20.0
# The values that mixture_forward saves, in this order.
SAVED = ("x", "probabilities", "routes", "arrived", "z", "outputs")
FIRST_OF_EQUAL = (
    "all probabilities are equal, so the right expert is the first one. max and argmax return the"
    " first of several equal numbers. sort and topk may return another one"
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
        equal.otherwise = FIRST_OF_EQUAL
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
