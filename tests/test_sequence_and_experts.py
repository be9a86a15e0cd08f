"""Part 9 · Long sequences and many experts: the public checks, on two and three ranks.

Run one problem with ``make test PART=sequence_and_experts K=ring``.
"""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check.api import call, per_rank, rounding
from grader.reference import attention, attention_mistakes, experts, sequence_pair

MODULE = "sequence_and_experts"
CLOSE = rounding(np.float64)

# A sequence of 4 tokens of width 3, and a pair with 4 hidden columns.
X = np.array([[1.0, -0.5, 2.0], [0.5, 1.0, 0.5], [-1.0, 0.5, 1.5], [2.0, 1.0, -0.5]])
A = np.array([[1.0, -0.5, 0.5, 1.0], [0.5, 1.0, -1.0, 0.25], [0.5, 0.75, 1.0, -0.5]])
B = np.array([[0.5, 1.0, -0.5], [1.0, 0.5, 0.25], [-0.5, 1.0, 1.0], [0.75, -1.0, 0.5]])
GRAD = np.array([[1.0, 0.5, -1.0], [0.25, -0.5, 1.0], [1.0, 1.0, 0.5], [-0.5, 2.0, 1.0]])
HALVES = np.split(X, 2)
GRADS = np.split(GRAD, 2)
PAIRS = list(zip(np.split(A, 2, 1), np.split(B, 2)))
Y, Z = sequence_pair.pair_forward(A, B, X)
SAVED = list(zip(HALVES, np.split(Z, 2, 1)))


@number("9.1")
@weight(0.5)
def test_sequence_pair(world):
    """On two ranks, sequence_parallel_forward returns this rank's rows of y and saves (x, z);
    shards that do not fit raise ValueError
    """
    name = f"{MODULE}.sequence_parallel_forward"
    forward, wrong = world(
        2,
        call(name, per_rank(*PAIRS), per_rank(*HALVES)),
        call(name, (A[:2], B), per_rank(*HALVES), may_raise=True),
    )
    forward.returns(
        *np.split(Y, 2),
        tolerance=CLOSE,
        select=lambda r: r[0],
        label="the tensor of this rank's rows of y",
        known_mistakes=sequence_pair.pair_mistakes(A, B, X, 2),
    )
    forward.returns(
        *SAVED,
        tolerance=CLOSE,
        select=lambda r: r[1],
        label="the saved (x, z)",
        known_mistakes=sequence_pair.saved_mistakes(A, X, 2),
    )
    wrong.raises_value_error("3", "2", given="x with 3 columns and A with 2 rows")


@number("9.1")
@weight(0.25)
def test_sequence_pair_backward(world):
    """On two ranks, sequence_parallel_backward returns the gradients of this rank's rows and of
    both shards
    """
    name = f"{MODULE}.sequence_parallel_backward"
    (backward,) = world(2, call(name, per_rank(*PAIRS), per_rank(*SAVED), per_rank(*GRADS)))
    grad_x, of_a, of_b = sequence_pair.pair_backward(A, B, X, GRAD)
    of_x, of_pair = sequence_pair.pair_backward_mistakes(A, B, X, GRAD, 2)
    backward.returns(
        *zip(np.split(of_a, 2, 1), np.split(of_b, 2)),
        tolerance=CLOSE,
        select=lambda r: r[1],
        label="the pair of gradients (of A, of B)",
        known_mistakes=of_pair,
    )
    backward.returns(
        *np.split(grad_x, 2),
        tolerance=CLOSE,
        select=lambda r: r[0],
        label="grad_x",
        known_mistakes=of_x,
    )


# Queries, keys and values of 6 tokens. The queries are X and two more rows.
Q = np.concatenate([X, [[1.5, 0.5, -1.0], [-0.5, 2.0, 1.0]]])
K, V = Q[::-1] * 0.75, np.concatenate([GRAD, GRAD[:2]]) + 0.25
GRAD_O = np.concatenate([GRAD, GRAD[2:]])
WAYS = [(2, False), (2, True), (3, True)]  # ranks, and whether attention is causal


def whole_attention(causal):
    """Return (output, logsumexp) of all tokens."""
    return attention.attention(Q, K, V, attention.visible(len(Q), causal))


def of_ranks(n, *arrays):
    return [per_rank(*np.split(array, n)) for array in arrays]


def named(n, causal):
    return f"causal={causal}, {n} ranks"


@number("9.2")
@weight(0.5)
def test_ring_attention(world):
    """On 2 and 3 ranks, ring_attention_forward equals full attention, also for scores in the
    thousands; keys of another shape raise ValueError
    """
    name = f"{MODULE}.ring_attention_forward"
    for n, causal in WAYS:
        (run,) = world(n, call(name, *of_ranks(n, Q, K, V), causal))
        known = attention_mistakes.attention_mistakes(Q, K, V, causal, n)
        for index, part in enumerate(("output", "logsumexp")):
            run.returns(
                *np.split(whole_attention(causal)[index], n),
                tolerance=CLOSE,
                select=lambda r, index=index: r[index],
                label=f"{part} ({named(n, causal)})",
                known_mistakes=[{k: v[index] for k, v in own.items()} for own in known],
            )
        run.uses_only("send", "recv", because="Keys and values travel around the ring.")
    (large,) = world(2, call(name, *of_ranks(2, Q * 1000, K, V), False))
    of_large = attention.attention(Q * 1000, K, V, attention.visible(len(Q), False))
    with np.errstate(all="ignore"):
        weights = np.exp(Q * 1000 @ K.T / np.sqrt(K.shape[1]))
        overflowed = np.split(weights @ V / weights.sum(axis=1, keepdims=True), 2)
    large.returns(
        *np.split(of_large[0], 2),
        tolerance=CLOSE,
        select=lambda r: r[0],
        label="the output, with scores so large that exp overflows,",
        known_mistakes=[{attention_mistakes.OVERFLOWED: own} for own in overflowed],
    )
    large.returns(
        *zip(*(np.split(part, 2) for part in of_large)),
        tolerance=CLOSE,
        label="(output, logsumexp), with scores so large that exp overflows,",
    )
    (wrong,) = world(2, call(name, Q[:2], K[:2, :2], V[:2], False, may_raise=True))
    wrong.raises_value_error("2", "3", given="q with 3 columns and k with 2 columns")


@number("9.2")
@weight(0.5)
def test_ring_attention_backward(world):
    """ring_attention_backward returns the gradients of full attention on two ranks (causal and not)
    and on three (causal)
    """
    for n, causal in WAYS:
        given = of_ranks(n, Q, K, V, *whole_attention(causal), GRAD_O)
        (run,) = world(n, call(f"{MODULE}.ring_attention_backward", *given, causal))
        right = attention.attention_backward(Q, K, V, GRAD_O, causal)
        run.returns(
            *zip(*(np.split(gradient, n) for gradient in right)),
            tolerance=CLOSE,
            label=f"(grad_q, grad_k, grad_v) ({named(n, causal)})",
            known_mistakes=attention_mistakes.attention_backward_mistakes(
                Q, K, V, GRAD_O, causal, n
            ),
        )
        run.uses_only("send", "recv", because="Gradients travel with their block.")


# The choices of the docstring's example: 2 ranks with one expert each. The permutation ``order`` of
# rank 0's tokens is not its own inverse.
CHOICES = [np.array([1, 1, 0]), np.array([1])]
ROWS = [np.array([[1.0], [2.0], [3.0]]), np.array([[4.0]])]


@number("9.3")
@weight(0.25)
def test_routes(world):
    """exchange_routes returns the routes, with one or two experts on each rank; to_experts and
    from_experts move rows to the experts and back
    """
    routes = experts.routes(CHOICES, 1)
    arrived = experts.send(ROWS, routes)
    of_pairs = experts.routes(MIXTURE.choices, 2)
    found, pairs, there, back, wrong = world(
        2,
        call(f"{MODULE}.exchange_routes", per_rank(*CHOICES), 1),
        call(f"{MODULE}.exchange_routes", per_rank(*MIXTURE.choices), 2),
        call(f"{MODULE}.to_experts", per_rank(*ROWS), per_rank(*routes)),
        call(f"{MODULE}.from_experts", per_rank(*arrived), per_rank(*routes)),
        call(f"{MODULE}.to_experts", np.ones((5, 1)), per_rank(*routes), may_raise=True),
    )
    found.returns(
        *routes,
        label="(order, sent, received, arrived)",
        known_mistakes=experts.routes_mistakes(CHOICES, 1),
    )
    pairs.returns(
        *of_pairs,
        label="(order, sent, received, arrived), with two experts on each rank,",
        known_mistakes=experts.routes_mistakes(MIXTURE.choices, 2),
    )
    there.returns(
        *arrived,
        label="the tensor of rows that arrive",
        known_mistakes=experts.send_mistakes(ROWS, routes),
    )
    back.returns(
        *ROWS,
        label="the tensor of rows that come back",
        known_mistakes=experts.back_mistakes(ROWS, routes),
    )
    wrong.raises_value_error("5", given="5 rows, with 3 tokens on rank 0 and 1 on rank 1")


# Two ranks with two experts each. Rank 0's tokens choose the experts 1, 2, 0 and 1, and rank 1's
# token chooses expert 0. No token chooses expert 3.
GATE = np.array([[1.0, -1.0, 0.5, -9.0], [0.5, 1.0, -1.0, -9.0], [-1.0, 0.5, 1.0, -9.0]])
WEIGHTS = [A[:, :3], B[:3], A[:, 1:], np.eye(3)]
MIXTURE = experts.Mixture(GATE, WEIGHTS, [np.array([X[1], np.abs(X[2]), X[3], X[2]]), X[3:] / 2])
OF_TOKENS = [GRAD, GRAD[:1] / 2]
# Rank 1 has no tokens, and rank 0's tokens choose the experts 1 and 0, which are on rank 0.
IDLE = experts.Mixture(GATE, WEIGHTS, [X[[1, 3]], X[:0]])
OF_IDLE = [GRAD[:2], GRAD[:0]]


@number("9.3")
@weight(0.75)
def test_mixture(world):
    """mixture_forward and mixture_backward are right for four experts on two ranks, also if one
    expert gets no tokens, or if a rank neither has nor gets any; a gate of the wrong width raises
    ValueError
    """
    own = per_rank(*(MIXTURE.own_weights(rank) for rank in range(2)))
    saved = per_rank(*(MIXTURE.saved(rank) for rank in range(2)))
    idle_saved = per_rank(*(IDLE.saved(rank) for rank in range(2)))
    forward, backward, idle_forward, idle_backward, wrong = world(
        2,
        call(f"{MODULE}.mixture_forward", GATE, own, per_rank(*MIXTURE.tokens)),
        call(f"{MODULE}.mixture_backward", GATE, own, saved, per_rank(*OF_TOKENS)),
        call(f"{MODULE}.mixture_forward", GATE, own, per_rank(*IDLE.tokens)),
        call(f"{MODULE}.mixture_backward", GATE, own, idle_saved, per_rank(*OF_IDLE)),
        call(f"{MODULE}.mixture_forward", GATE[:, :3], own, X[:2], may_raise=True),
    )
    forward.returns(
        *MIXTURE.ys,
        tolerance=CLOSE,
        select=lambda r: r[0],
        label="the tensor of the outputs of this rank's tokens",
        known_mistakes=MIXTURE.forward_mistakes(),
    )
    forward.returns(
        *(MIXTURE.saved(rank) for rank in range(2)),
        tolerance=CLOSE,
        select=lambda r: r[1],
        label="the saved (x, probabilities, routes, arrived, z, outputs)",
        known_mistakes=[
            {experts.SAVED_TIMES_P: (*MIXTURE.saved(rank)[:5], MIXTURE.ys[rank])}
            for rank in range(2)
        ],
    )
    backward.returns(
        *MIXTURE.gradients(OF_TOKENS),
        tolerance=CLOSE,
        label="(grad_x, grad_gate, gradients)",
        known_mistakes=MIXTURE.backward_mistakes(OF_TOKENS),
    )
    idle_forward.returns(
        *IDLE.ys,
        tolerance=CLOSE,
        select=lambda r: r[0],
        label="the tensor of the outputs, if rank 1 has no tokens,",
        known_mistakes=IDLE.forward_mistakes(),
    )
    idle_backward.returns(
        *IDLE.gradients(OF_IDLE),
        tolerance=CLOSE,
        label="(grad_x, grad_gate, gradients), if rank 1 has no tokens,",
        known_mistakes=IDLE.backward_mistakes(OF_IDLE),
    )
    wrong.raises_value_error("3", given="a gate of 3 columns for 2 ranks with 2 experts each")
