"""Computes attention and its gradients, as on one device. All values are in numpy and float64."""

import numpy as np


def visible(tokens: int, causal: bool) -> np.ndarray:
    """Return a mask. Its entry [i, j] is True if query i sees key j."""
    return np.tri(tokens, dtype=bool) if causal else np.ones((tokens, tokens), bool)


def scores_of(
    q: np.ndarray, k: np.ndarray, seen: np.ndarray, scale: float | None = None
) -> np.ndarray:
    """Return the score of each query and key. It is −∞ where ``seen[query, key]`` is False."""
    return np.where(seen, (q @ k.T) * (scale or q.shape[1] ** -0.5), -np.inf)


def softmax(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (weights, largest, total): the attention weights, and two numbers for each query.

    ``largest`` is the largest score, and ``total`` is the sum of exp(score − largest).
    """
    largest = scores.max(axis=1, keepdims=True)
    weights = np.exp(scores - largest)
    total = weights.sum(axis=1, keepdims=True)
    return weights / total, largest, total


def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, seen: np.ndarray, scale: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return (output, logsumexp) for the whole sequence."""
    weights, largest, total = softmax(scores_of(q, k, seen, scale))
    return weights @ v, (largest + np.log(total))[:, 0]


def attention_backward(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    grad: np.ndarray,
    causal: bool,
    row_sum: bool = True,
    blocks: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the gradients of q, k and v for the whole sequence.

    A pair of query i and key j adds to the gradients only if ``blocks[i, j]`` is True. If
    ``blocks`` is None, all pairs add to them. In both cases, the attention weights are computed
    over all visible pairs. If ``row_sum`` is False, the sum Σ grad_o ⊙ o is left out.
    """
    scale = q.shape[1] ** -0.5
    weights, _, _ = softmax(scores_of(q, k, visible(len(q), causal)))
    output = weights @ v
    counted = weights if blocks is None else weights * blocks
    of_rows = (grad * output).sum(axis=1, keepdims=True) if row_sum else 0.0
    grad_scores = counted * (grad @ v.T - of_rows) * scale
    return grad_scores @ k, grad_scores.T @ q, counted.T @ grad


def some_rows(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, rows: np.ndarray, causal: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return (output, logsumexp) for the tokens ``rows`` of a long sequence."""
    seen = np.arange(len(q)) <= rows[:, None] if causal else np.ones((len(rows), len(q)), bool)
    return attention(q[rows], k, v, seen)


def some_gradients(
    tensors: tuple[np.ndarray, ...],
    forwarded: tuple[np.ndarray, np.ndarray],
    rows: np.ndarray,
    causal: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the gradients of q, k and v for the tokens ``rows`` of a long sequence.

    ``tensors`` are q, k, v and the gradient of the output. ``forwarded`` is the result of the
    forward pass for all tokens, (output, logsumexp).
    """
    (q, k, v, grad), (output, logsumexp) = tensors, forwarded
    scale, tokens = q.shape[1] ** -0.5, np.arange(len(q))

    def computed(queries: np.ndarray, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the attention weights of these queries and keys, and the scores' gradients."""
        weights = np.exp(q[queries] @ k[keys].T * scale - logsumexp[queries, None])
        if causal:
            weights = np.where(keys <= queries[:, None], weights, 0.0)
        of_rows = (grad[queries] * output[queries]).sum(axis=1, keepdims=True)
        return weights, weights * (grad[queries] @ v[keys].T - of_rows) * scale

    _, of_queries = computed(rows, tokens)
    weights, of_keys = computed(tokens, rows)
    return of_queries @ k, of_keys.T @ q, weights.T @ grad
