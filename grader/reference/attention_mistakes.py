"""Computes the results of well-known mistakes in ring attention.

All values are in numpy and float64. Lists have one entry for each rank. In a dict of mistakes, each
key is the sentence that describes one mistake.
"""

from typing import Any

import numpy as np

from grader.reference.attention import (
    attention,
    attention_backward,
    scores_of,
    softmax,
    visible,
)
from grader.reference.by_rank import by_rank, split

OWN_BLOCK = (
    "each query saw the keys of its own rank only. Pass keys and values around the ring, and use"
    " every block that arrives, also the last one"
)
OVERFLOWED = (
    "exp(score) overflowed, and inf/inf is nan. Compute exp(score − M), with the largest score M"
)
UNSCALED = "the scores were not divided by √d"
BY_D = "the scores were divided by d, not by √d"
NOT_CAUSAL = (
    "your tokens see later tokens. If causal is True, a token sees only itself and earlier tokens"
)
CAUSAL = "your tokens do not see later tokens. If causal is False, every token sees all tokens"
FUTURE_BLOCKS = (
    "the mask hides later tokens only in a rank's own block. A query must not see the blocks of the"
    " ranks after its own"
)
MASKED_BLOCKS = (
    "the triangular mask was applied to every block. Apply it only to a rank's own block: all"
    " tokens in the block of an earlier rank are visible"
)
WRONG_OWNER = (
    "the blocks were assigned to the wrong ranks. After k steps, rank r has the block of rank (r −"
    " k) mod n"
)
MEAN_OF_BLOCKS = (
    "this is the plain mean of the outputs of all blocks. Compute a weighted mean: the weight of a"
    " block is its sum of exponentials"
)
NOT_RESCALED = (
    "the sums of earlier blocks were not multiplied by exp(m − M) when a larger score was found"
)
ONLY_SUM_RESCALED = "the sum l was multiplied by exp(m − M), but the sum a was not. Multiply both"
ONLY_OUTPUT_RESCALED = (
    "the sum a was multiplied by exp(m − M), but the sum l was not. Multiply both"
)
HIDDEN_DIAGONAL = (
    "the mask hides the diagonal, too. A token sees itself: hide only the entries above the"
    " diagonal, triu(1)"
)
OPEN_DIAGONAL = (
    "inside a rank's own block, a token sees the tokens after it. This block needs a mask, too:"
    " hide the entries above its diagonal, triu(1)"
)
UNDIVIDED = "the output was not divided by the sum of the exponentials"
ONLY_LARGEST = "this is only the largest score, m. Add the logarithm of the sum of exp(score − m)"
ONLY_LOG = "this is the logarithm of the sum of exp(score − m). Add m"

HIDDEN_ARE_ZERO = (
    "the scores of hidden keys were set to 0, and exp(0) is 1. Set them to −∞, so that exp gives 0"
)
OWN_LARGEST = (
    "the exponentials of each block are relative to the largest score of this block. Use one M for"
    " all blocks"
)
ONLY_KEYS = "only the keys travelled. Pass the values on, too, and use the values of each block"
NO_LOG = "the logarithm of l is missing: logsumexp is m + log l"

NO_MASK = "the backward pass has no mask. A query has no gradient from keys that it does not see"
EACH_BLOCK = "P was normalised within each block. Use the logsumexp of all keys"
NO_LOGSUMEXP = "P is exp(score − logsumexp), but logsumexp was not subtracted"
OUTSIDE_P = "P must multiply the whole difference: grad_score = P ⊙ (grad_P − Σ grad_o ⊙ o)"
STAYED = (
    "this rank added up its parts for the blocks of all ranks. The gradients of a block must travel"
    " with the block: each rank adds its own part to them"
)
OWN_QUERIES = (
    "grad_k and grad_v come from this rank's own queries only. Send a block's gradients along with"
    " the block: every rank adds its part"
)
ONE_STEP_SHORT = (
    "grad_k and grad_v are those of rank {}. The gradients need n steps, one more than the keys and"
    " values, to return to their own rank"
)
NO_ROW_SUM = "Σ grad_o ⊙ o was not subtracted from grad_P"
NO_SCALE = "the factor 1/√d is missing in the gradient of the scores"


def blocks_of(tokens: int, n: int) -> np.ndarray:
    """Return a mask. Its entry [i, j] is True if query i and key j belong to the same rank."""
    owner = np.arange(tokens) // (tokens // n)
    return owner[:, None] == owner[None, :]


def attention_mistakes(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool, n: int
) -> list[dict[str, Any]]:
    """Return one dict of mistakes for each rank. The values are the rank's (output, logsumexp)."""
    tokens, width = q.shape
    seen = visible(tokens, causal)
    output, logsumexp = attention(q, k, v, seen)
    _, largest, total = softmax(scores_of(q, k, seen))
    made = {
        UNDIVIDED: (output * total, logsumexp),
        ONLY_LARGEST: (output, largest[:, 0]),
        ONLY_LOG: (output, np.log(total)[:, 0]),
        NO_LOG: (output, (largest + total)[:, 0]),
        (NOT_CAUSAL if causal else CAUSAL): attention(q, k, v, visible(tokens, not causal)),
    }
    if width > 1:
        made[UNSCALED] = attention(q, k, v, seen, 1.0)
        made[BY_D] = attention(q, k, v, seen, 1 / width)
    if causal:
        made[HIDDEN_DIAGONAL] = _without_diagonal(q, k, v, n)
        made[OPEN_DIAGONAL] = attention(q, k, v, seen | blocks_of(tokens, n))
        made[HIDDEN_ARE_ZERO] = _with_zeros(q, k, v, np.ones_like(seen))
        # Here the mask hides keys in a rank's own block only. Blocks of later ranks are left out.
        own_zeros = f"{HIDDEN_ARE_ZERO}. Look at the mask of a rank's own block"
        made[own_zeros] = _with_zeros(q, k, v, seen | blocks_of(tokens, n))
    if n > 1:
        made |= _ring_mistakes(q, k, v, causal, n)
    return by_rank({name: list(zip(split(o, n), split(s, n))) for name, (o, s) in made.items()}, n)


def _without_diagonal(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the result of causal ring attention in which no token sees itself.

    In a rank's own block, all scores of the rank's first query are then −∞. So the exponentials of
    this query are NaN, and its output and logsumexp are NaN, too.
    """
    first = np.arange(0, len(q), len(q) // n)
    seen = np.tri(len(q), k=-1, dtype=bool)
    seen[first] = True  # the results of these rows are replaced below
    output, logsumexp = attention(q, k, v, seen)
    output[first], logsumexp[first] = np.nan, np.nan
    return output, logsumexp


def _ring_mistakes(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool, n: int) -> dict:
    tokens, rows = len(q), len(q) // n
    seen, same = visible(tokens, causal), blocks_of(tokens, n)
    made = {
        OWN_BLOCK: attention(q, k, v, seen & same),
        NOT_RESCALED: _not_rescaled(q, k, v, seen, n),
        ONLY_SUM_RESCALED: _not_rescaled(q, k, v, seen, n, rescaled_sum=True),
        ONLY_OUTPUT_RESCALED: _not_rescaled(q, k, v, seen, n, rescaled_output=True),
        OWN_LARGEST: _by_blocks(q, k, v, seen, n),
    }
    weights, largest, total = softmax(scores_of(q, k, seen))
    of_ranks = [
        sum(np.split(own, n, 1)) @ own_v for own, own_v in zip(split(weights, n), split(v, n))
    ]
    made[ONLY_KEYS] = np.concatenate(of_ranks), (largest + np.log(total))[:, 0]
    if not causal:
        of_blocks = [
            attention(q, k, v, np.repeat(np.arange(n) == j, rows)[None, :] & seen)[0]
            for j in range(n)
        ]
        made[MEAN_OF_BLOCKS] = np.mean(of_blocks, axis=0), attention(q, k, v, seen)[1]
        return made
    inside = np.tile(np.tri(rows, dtype=bool), (n, n))
    owner = np.arange(tokens) // rows
    # In some step, rank r has the block of rank r − step, and treats it as the block of rank
    # r + step.
    taken = (2 * owner[:, None] - owner[None, :]) % n
    turned = (taken < owner[:, None]) | ((taken == owner[:, None]) & inside)
    made[FUTURE_BLOCKS] = attention(q, k, v, seen | ~same)
    made[MASKED_BLOCKS] = attention(q, k, v, seen & inside)
    made[WRONG_OWNER] = attention(q, k, v, turned | (same & seen))
    return made


def _with_zeros(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, used: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return causal attention with hidden scores of 0, and without the keys outside ``used``."""
    scores = np.where(np.tri(len(q), dtype=bool), scores_of(q, k, used), 0.0)
    weights, largest, total = softmax(np.where(used, scores, -np.inf))
    return weights @ v, (largest + np.log(total))[:, 0]


def _by_blocks(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, seen: np.ndarray, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return attention that subtracts from each score the largest score of the key's block."""
    scores = scores_of(q, k, seen)
    blocks = np.split(scores, n, 1)
    largest = [own.max(axis=1, keepdims=True) for own in blocks]
    weights = np.concatenate(
        [np.exp(own - np.where(np.isfinite(m), m, 0.0)) for own, m in zip(blocks, largest)], 1
    )
    total = weights.sum(axis=1, keepdims=True)
    return weights @ v / total, (np.max(largest, axis=0) + np.log(total))[:, 0]


def _not_rescaled(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    seen: np.ndarray,
    n: int,
    rescaled_sum: bool = False,
    rescaled_output: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Return (output, logsumexp) of a ring that rescales nothing when it finds a larger score.

    If ``rescaled_sum`` is True, the ring rescales the sum of exponentials. If ``rescaled_output``
    is True, it rescales the output.
    """
    scores = scores_of(q, k, seen)
    outputs, sums = [], []
    of_queries = [split(part.T, n) for part in split(scores, n)]
    for rank, of_blocks in enumerate(of_queries):
        largest = np.full((len(q) // n, 1), -np.inf)
        total, output = 0.0, 0.0
        for step in range(n):
            own = of_blocks[(rank - step) % n].T
            before, largest = largest, np.maximum(largest, own.max(axis=1, keepdims=True))
            weights, shrink = np.exp(own - largest), np.exp(before - largest)
            total = total * (shrink if rescaled_sum else 1) + weights.sum(axis=1, keepdims=True)
            output = (
                output * (shrink if rescaled_output else 1)
                + weights @ split(v, n)[(rank - step) % n]
            )
        outputs.append(output / total)
        sums.append((largest + np.log(total))[:, 0])
    return np.concatenate(outputs), np.concatenate(sums)


def attention_backward_mistakes(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, grad: np.ndarray, causal: bool, n: int
) -> list[dict[str, Any]]:
    """Return one dict of mistakes for each rank: mistake → the gradients of q, k and v."""
    right = attention_backward(q, k, v, grad, causal)
    made = {NO_ROW_SUM: attention_backward(q, k, v, grad, causal, row_sum=False)}
    if causal:
        others = ~np.eye(len(q), dtype=bool)
        made[HIDDEN_DIAGONAL] = attention_backward(q, k, v, grad, causal, blocks=others)
    if q.shape[1] > 1:
        root = q.shape[1] ** 0.5
        made[NO_SCALE] = right[0] * root, right[1] * root, right[2]
    made |= _wrong_weights(q, k, v, grad, causal, n)
    if n > 1:
        alone = attention_backward(q, k, v, grad, causal, blocks=blocks_of(len(q), n))
        made[OWN_QUERIES] = right[0], alone[1], alone[2]
        made[OWN_BLOCK] = alone
    found = by_rank({name: list(zip(*(split(g, n) for g in g3))) for name, g3 in made.items()}, n)
    if n > 1:
        for rank, known in enumerate(found):
            known[STAYED] = _of_all_blocks(q, k, v, grad, causal, n, rank)
    of_ranks = list(zip(*(split(g, n) for g in right)))
    neighbours = range(n) if n > 1 else ()
    for rank in neighbours:
        after = (rank + 1) % n
        found[rank][ONE_STEP_SHORT.format(after)] = (of_ranks[rank][0], *of_ranks[after][1:])
    return found


def _wrong_weights(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, grad: np.ndarray, causal: bool, n: int
) -> dict[str, tuple]:
    """Return a dict of mistakes in the attention weights P. The values are gradients of q, k, v."""
    scale, seen = q.shape[1] ** -0.5, visible(len(q), causal)
    same = blocks_of(len(q), n)
    output, logsumexp = attention(q, k, v, seen)
    of_rows = (grad * output).sum(axis=1, keepdims=True)
    grad_weights = grad @ v.T
    scores = q @ k.T
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        of_all = np.exp(scores * scale - logsumexp[:, None])
        masks = {
            NO_MASK: np.ones_like(seen),
            FUTURE_BLOCKS: seen | ~same,
            OPEN_DIAGONAL: seen | same,
        }
        wrong = (
            {name: np.where(mask, of_all, 0.0) for name, mask in masks.items()} if causal else {}
        )
        wrong[UNSCALED] = np.where(seen, np.exp(scores - logsumexp[:, None]), 0.0)
        wrong[NO_LOGSUMEXP] = np.where(seen, np.exp(scores * scale), 0.0)
        if n > 1:
            blocks = np.split(wrong[NO_LOGSUMEXP], n, 1)
            sums = [own.sum(axis=1, keepdims=True) for own in blocks]
            parts = [np.where(t > 0, own / t, 0.0) for own, t in zip(blocks, sums)]
            wrong[EACH_BLOCK] = np.concatenate(parts, 1)
        found = {}
        for name, weights in wrong.items():
            grad_scores = weights * (grad_weights - of_rows) * scale
            found[name] = grad_scores @ k, grad_scores.T @ q, weights.T @ grad
        right = np.where(seen, of_all, 0.0)
        for name, grad_scores in (
            (OUTSIDE_P, seen * (grad_weights - of_rows) * scale),
            (
                f"{OUTSIDE_P}. P multiplied grad_P only",
                seen * (right * grad_weights - of_rows) * scale,
            ),
        ):
            found[name] = grad_scores @ k, grad_scores.T @ q, right.T @ grad
    # Large scores make these numbers overflow. A gradient with such numbers explains nothing.
    return {name: own for name, own in found.items() if all(np.isfinite(g).all() for g in own)}


def _of_all_blocks(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, grad: np.ndarray, causal: bool, n: int, rank: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return a rank's gradients if it adds up its parts of grad_k and grad_v for all blocks."""
    owner = np.arange(len(q)) // (len(q) // n)
    own_queries = np.broadcast_to((owner == rank)[:, None], (len(q), len(q)))
    grad_q, grad_k, grad_v = attention_backward(q, k, v, grad, causal, blocks=own_queries)
    of_k, of_v = (np.asarray(sum(split(gradient, n))) for gradient in (grad_k, grad_v))
    return split(grad_q, n)[rank], of_k, of_v
