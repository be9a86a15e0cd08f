"""Computes a mixture of experts on one device, and the results of well-known mistakes.

All values are in numpy and float64. Lists have one entry for each rank. In a dict of mistakes, each
key is the sentence that describes one mistake.
"""

from typing import Any

import numpy as np

from grader.reference.by_rank import by_rank
from grader.reference.single_device import gelu, gelu_derivative

Routes = tuple[np.ndarray, list, list, np.ndarray]

NO_PROBABILITY = "the outputs were not multiplied by p, the probability of the chosen expert"
BY_LOGIT = "the outputs were multiplied by the largest logit. p is the largest probability"
SORTED_OUTPUTS = (
    "the rows are in the order of the experts. Put them back into the order of this rank's tokens"
)
TWICE_SORTED = (
    "the sorted rows were indexed with [order] a second time. To undo the sort, assign:"
    " in_order[order] = rows"
)
TOKEN_ORDER = "the rows were sent in the order of the tokens. Sort them by their experts"
WORLD_NUMBERS = "these are global expert numbers. Count this rank's own experts from 0"
ONE_COUNT = (
    "in arrived, the number of an expert depends on the sender. This rank's first expert is 0"
    " for every sender"
)
EXPERT_MAJOR = (
    "arrived is sorted by expert. Tokens arrive in the order of the ranks that send them, and from"
    " each rank in the order of the experts"
)
SWAPPED = "sent and received are swapped"
DESCENDING = "the tokens are sorted by descending expert number. Sort them in ascending order"
SAVED_TIMES_P = "these outputs are multiplied by p. Save them as they came from the experts"
INVERSE = "this is the inverse permutation. order[i] is the token at place i of the sorted list"
OWN_TOKENS = "grad_gate is the sum over this rank's own tokens only. Sum it over the ranks"
MEAN_OF_RANKS = "grad_gate was averaged over the ranks. It must be the sum over all tokens"
NO_GATE_WAY = "grad_x lacks the gradient through the logits: add grad_logits @ gateᵀ"
NO_EXPERT_WAY = "grad_x lacks the gradient through the experts: add the gradient that they return"
P_MISSING = "grad_y was not multiplied by p before it was sent to the experts"
WRONG_SIGN = "the sign of the softmax's derivative is wrong. The derivative is p·(δ − π)"
NO_P_IN_LOGITS = "grad_logits lacks the factor p. The formula is (Σ grad_y ⊙ f) · p · (δ − π)"
P_SQUARED = (
    "grad_logits has the factor p twice. f is the expert's output, before it is multiplied by p"
)
NO_DELTA = (
    "grad_logits lacks δ, which is 1 for the chosen expert. The formula is"
    " (Σ grad_y ⊙ f) · p · (δ − π)"
)
P_AGAIN = (
    "the gradient that comes back from the experts was multiplied by p. grad_y already got this"
    " factor before it was sent"
)
EXPERTS_SUMMED = (
    "the gradients of experts of different ranks were added up. The gradient of an expert is"
    " complete on its own rank"
)
NO_GELU = "gelu is missing. layer_forward returns (y, z), and the output of an expert is y"
P_BEFORE_GELU = "the tokens or z were multiplied by p. Multiply the output of the expert by p"
BY_EXPERT = (
    "the results of a rank's experts were joined expert by expert, but to_experts and from_experts"
    " use the order of arrival. Write each result to the place of its token"
)
ONLY_CHOSEN = (
    "your code gives a gradient to the logit of the chosen expert alone. Every logit has a"
    " gradient: p·(δ − π). δ is 1 for the chosen expert and 0 for all other experts. π is the"
    " probability of the logit's expert"
)


class Mixture:
    """A mixture of experts and the tokens of all ranks, computed on one device."""

    def __init__(self, gate: np.ndarray, weights: list, tokens: list) -> None:
        """Compute the forward pass.

        ``weights`` has the weights of all experts of the world. ``tokens[rank]`` are the tokens of
        a rank.
        """
        self.gate, self.weights, self.tokens = gate, weights, tokens
        self.n, self.each = len(tokens), len(weights) // len(tokens)
        self.logits = [x @ gate for x in tokens]
        self.choices = [np.argmax(logits, axis=1) for logits in self.logits]
        powers = [np.exp(own - own.max(axis=1, keepdims=True)) for own in self.logits]
        self.probabilities = [own / own.sum(axis=1, keepdims=True) for own in powers]
        self.p = [own.max(axis=1, keepdims=True) for own in self.probabilities]
        self.routes = routes(self.choices, self.each)
        self.outputs = [
            np.array([gelu(row @ weights[c]) for row, c in zip(x, own)]).reshape(x.shape)
            for x, own in zip(tokens, self.choices)
        ]
        self.arrived = send(tokens, self.routes)
        self.z = [
            np.array(
                [row @ weights[r * self.each + i] for row, i in zip(rows, self.routes[r][3])]
            ).reshape(rows.shape)
            for r, rows in enumerate(self.arrived)
        ]

    @property
    def ys(self) -> list:
        return [p * f for p, f in zip(self.p, self.outputs)]

    def saved(self, rank: int) -> tuple:
        return (
            self.tokens[rank],
            self.probabilities[rank],
            self.routes[rank],
            self.arrived[rank],
            self.z[rank],
            self.outputs[rank],
        )

    def own_weights(self, rank: int) -> list:
        return self.weights[rank * self.each :][: self.each]

    def forward_mistakes(self) -> list[dict[str, Any]]:
        made: dict[str, list] = {
            NO_PROBABILITY: self.outputs,
            BY_LOGIT: [l.max(axis=1, keepdims=True) * f for l, f in zip(self.logits, self.outputs)],
        }
        for name, rows in put_back_wrongly(self.outputs, self.routes).items():
            made[name] = [p * own for p, own in zip(self.p, rows)]
        z = self._on_own_tokens()
        made[NO_GELU] = [p * own for p, own in zip(self.p, z)]
        made[P_BEFORE_GELU] = [gelu(p * own) for p, own in zip(self.p, z)]
        by_expert = [
            gelu(own[np.argsort(route[3], kind="stable")])
            for own, route in zip(self.z, self.routes)
        ]
        made[BY_EXPERT] = [p * own for p, own in zip(self.p, send_back(by_expert, self.routes))]
        return by_rank(made, self.n)

    def _on_own_tokens(self) -> list[np.ndarray]:
        """Return, for each rank, x @ W for each of its tokens x. W is the weight of x's expert."""
        return [
            np.array([row @ self.weights[c] for row, c in zip(x, own)]).reshape(x.shape)
            for x, own in zip(self.tokens, self.choices)
        ]

    def backward(self, grads: list, through_p: bool = True) -> tuple[list, list, list]:
        """Return three lists of gradients, ``(of_tokens, of_gates, of_logits)``.

        The gradient of a rank's tokens is the sum of ``of_tokens[rank]``, through the experts, and
        ``of_logits[rank]``, through the gate's logits. ``of_gates[rank]`` is the gradient of the
        gate from this rank's tokens only. If ``through_p`` is False, ``of_tokens`` lacks the factor
        p, the probability of the chosen expert. The method ``of_weights`` returns the gradients of
        the experts' weights.
        """
        of_tokens, of_gates, of_logits = [], [], []
        for rank, x in enumerate(self.tokens):
            factor = self.p[rank] if through_p else 1.0
            rows = [
                ((g * gelu_derivative(row @ self.weights[c])) @ self.weights[c].T)
                for g, row, c in zip(factor * grads[rank], x, self.choices[rank])
            ]
            of_tokens.append(np.array(rows).reshape(x.shape))
            grad_logits = self.grad_logits(rank, grads[rank])
            of_gates.append(x.T @ grad_logits)
            of_logits.append(grad_logits @ self.gate.T)
        return of_tokens, of_gates, of_logits

    def grad_logits(self, rank: int, grad: np.ndarray, only_chosen: bool = False) -> np.ndarray:
        chosen = np.eye(len(self.weights))[self.choices[rank]]
        pi = self.probabilities[rank] * (chosen if only_chosen else 1.0)
        return (grad * self.outputs[rank]).sum(axis=1, keepdims=True) * self.p[rank] * (chosen - pi)

    def _wrong_logits(self, grads: list) -> dict[str, list]:
        """Return a dict of mistakes. Each value lists the gradient of the logits of each rank."""
        made: dict[str, list] = {NO_P_IN_LOGITS: [], P_SQUARED: [], NO_DELTA: []}
        for rank, grad in enumerate(grads):
            right, p = self.grad_logits(rank, grad), self.p[rank]
            made[NO_P_IN_LOGITS].append(right / p)
            made[P_SQUARED].append(right * p)
            of_output = (grad * self.outputs[rank]).sum(axis=1, keepdims=True)
            made[NO_DELTA].append(-of_output * p * self.probabilities[rank])
        return made

    def of_weights(self, grads: list, through_p: bool = True) -> list[np.ndarray]:
        """Return the gradients of all experts' weights, from the tokens of all ranks."""
        found = [np.zeros_like(weight) for weight in self.weights]
        for rank, x in enumerate(self.tokens):
            factor = self.p[rank] if through_p else np.ones_like(self.p[rank])
            for row, g, c in zip(x, factor * grads[rank], self.choices[rank]):
                found[c] += np.outer(row, g * gelu_derivative(row @ self.weights[c]))
        return found

    def of_rank(self, gradients: list, rank: int) -> list:
        return gradients[rank * self.each :][: self.each]

    def gradients(self, grads: list) -> list[tuple]:
        """Return, for each rank, (grad_x, grad_gate, gradients)."""
        of_tokens, of_gates, of_logits = self.backward(grads)
        of_weights = self.of_weights(grads)
        return [
            (of_tokens[r] + of_logits[r], sum(of_gates), self.of_rank(of_weights, r))
            for r in range(self.n)
        ]

    def backward_mistakes(self, grads: list) -> list[dict[str, Any]]:
        """Return one dict of mistakes per rank. The values are (grad_x, grad_gate, gradients)."""
        of_tokens, of_gates, of_logits = self.backward(grads)
        bare, bare_weights = self.backward(grads, through_p=False)[0], self.of_weights(grads, False)
        right, gate = self.gradients(grads), sum(of_gates)
        short = [self.grad_logits(r, grads[r], only_chosen=True) for r in range(self.n)]
        gate_short = sum(x.T @ g for x, g in zip(self.tokens, short))
        of_ranks = [self.of_rank(self.of_weights(grads), r) for r in range(self.n)]
        summed = [sum(of_index) for of_index in zip(*of_ranks)]
        wrong_logits = self._wrong_logits(grads)
        found = []
        for r in range(self.n):
            grad_x, _, own = right[r]
            known = {
                NO_GATE_WAY: (of_tokens[r], gate, own),
                NO_EXPERT_WAY: (of_logits[r], gate, own),
                WRONG_SIGN: (of_tokens[r] - of_logits[r], -gate, own),
                P_MISSING: (bare[r] + of_logits[r], gate, self.of_rank(bare_weights, r)),
                ONLY_CHOSEN: (of_tokens[r] + short[r] @ self.gate.T, gate_short, own),
            }
            for name, of_all in wrong_logits.items():
                of_gate = sum(x.T @ g for x, g in zip(self.tokens, of_all))
                known[name] = (of_tokens[r] + of_all[r] @ self.gate.T, of_gate, own)
            known[P_AGAIN] = (self.p[r] * of_tokens[r] + of_logits[r], gate, own)
            if self.n > 1:
                known[EXPERTS_SUMMED] = (grad_x, gate, summed)
                known[OWN_TOKENS] = (grad_x, of_gates[r], own)
                known[MEAN_OF_RANKS] = (grad_x, gate / self.n, own)
            found.append(known)
        return found


def routes(choices: list, each: int) -> list[Routes]:
    """Return the routes of each rank: (order, sent, received, arrived).

    ``order`` has the indices of the rank's tokens, sorted by the experts of the tokens. ``sent[r]``
    is the number of tokens that go to rank r, and ``received[r]`` is the number of tokens that come
    from rank r. ``arrived`` has the expert of each token that arrives. The experts are numbered
    from 0 among the rank's own experts.

    ``choices[rank]`` has the expert that each token of a rank has chosen. ``each`` is the number of
    experts of a rank.
    """
    n = len(choices)
    counts = [np.bincount(own, minlength=n * each).reshape(n, each) for own in choices]
    found = []
    for rank, choice in enumerate(choices):
        sent = [int(c) for c in counts[rank].sum(axis=1)]
        received = [int(counts[other][rank].sum()) for other in range(n)]
        arrived = np.concatenate(
            [np.repeat(np.arange(each), counts[other][rank]) for other in range(n)]
        )
        order = np.argsort(choice, kind="stable")
        found.append((order.astype(np.int64), sent, received, arrived.astype(np.int64)))
    return found


def routes_mistakes(choices: list, each: int) -> list[dict[str, Any]]:
    """Return one dict of mistakes for each rank. The values are wrong routes."""
    found = []
    for rank, (order, sent, received, arrived) in enumerate(routes(choices, each)):
        inverse = np.argsort(order, kind="stable")
        # for each sender, and for each of this rank's experts: the number of tokens that come
        incoming = [(own == rank * each + e).sum() for own in choices for e in range(each)]
        one_count = np.repeat(np.arange(len(incoming)), incoming)
        known = {
            ONE_COUNT: (order, sent, received, one_count),
            WORLD_NUMBERS: (order, sent, received, arrived + rank * each),
            EXPERT_MAJOR: (order, sent, received, np.sort(arrived)),
            SWAPPED: (order, received, sent, arrived),
            INVERSE: (inverse, sent, received, arrived),
            DESCENDING: (np.argsort(-choices[rank], kind="stable"), sent, received, arrived),
        }
        found.append(known)
    return found


def send(rows: list, of_ranks: list[Routes], in_order: bool = True) -> list[np.ndarray]:
    """Return the rows that arrive at each rank. ``rows[rank]`` are the rows of a rank's tokens.

    If ``in_order`` is False, the ranks do not sort their rows by expert before they send them.
    """
    n = len(rows)
    given = [own[route[0]] if in_order else own for own, route in zip(rows, of_ranks)]
    ends = [np.cumsum([0, *route[1]]) for route in of_ranks]
    return [
        np.concatenate([given[i][ends[i][j] : ends[i][j + 1]] for i in range(n)]) for j in range(n)
    ]


def send_back(rows: list, of_ranks: list[Routes]) -> list[np.ndarray]:
    """Return the rows that come back to the tokens of each rank: the inverse of ``send``.

    ``rows[rank]`` are rows for the tokens that have arrived at a rank, in the order of arrival.
    """
    n = len(rows)
    ends = [np.cumsum([0, *route[2]]) for route in of_ranks]
    found = []
    for rank, (order, *_) in enumerate(of_ranks):
        own = np.concatenate([rows[j][ends[j][rank] : ends[j][rank + 1]] for j in range(n)])
        in_order = np.empty_like(own)
        in_order[order] = own
        found.append(in_order)
    return found


def send_mistakes(rows: list, of_ranks: list[Routes]) -> list[dict[str, Any]]:
    return by_rank({TOKEN_ORDER: send(rows, of_ranks, in_order=False)}, len(rows))


def back_mistakes(rows: list, of_ranks: list[Routes]) -> list[dict[str, Any]]:
    """Return one dict of mistakes for each rank. The values are the rows that come back to it."""
    return by_rank(put_back_wrongly(rows, of_ranks), len(rows))


def put_back_wrongly(rows: list, of_ranks: list[Routes]) -> dict[str, list]:
    """Return a dict of mistakes. Each value lists the rows of every rank, in a wrong order."""
    sorted_rows = [own[route[0]] for own, route in zip(rows, of_ranks)]
    return {
        SORTED_OUTPUTS: sorted_rows,
        TWICE_SORTED: [own[route[0]] for own, route in zip(sorted_rows, of_ranks)],
    }
