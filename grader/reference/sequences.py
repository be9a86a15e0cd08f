"""Computes a sequence-parallel pair, attention, and the results of well-known mistakes.

The pair and attention are computed as on one device. All values are in numpy and float64. Lists
have one entry for each rank. In a dict of mistakes, each key is the sentence that describes one
mistake.
"""

from typing import Any

import numpy as np

from grader.reference.by_rank import by_rank
from grader.reference.single_device import gelu, gelu_derivative

PARTIAL = (
    "the products with B were not summed over the ranks: each rank took its rows from its own"
    " partial product. A reduce-scatter sums them, and gives each rank its rows"
)
AVERAGED = "the partial products were averaged over the ranks. Add them up without dividing"
UNNORMALIZED = "the rows were not normalised before they were multiplied by A"
NO_RESIDUAL = "x was not added to the output of the two layers"
NORMALIZED_SAVED = "these are the normalised rows. Save x as it is given"
AFTER_GELU = "this is gelu(z). Save z, the input of gelu"

SECOND_GELU = "gelu was applied after B, too. There is no gelu after B here"
NO_GELU = "gelu is missing after A"
RESIDUAL_SUMMED = (
    "the residual was added on every rank before the sum, so it was added once for each rank. Add x"
    " after the sum"
)
NOT_GATHERED = (
    "the rows were not gathered. Each rank multiplied only its own rows by its own shards, and then"
    " products of different tokens were added up"
)

NO_DIRECT_WAY = "the gradient through the residual is missing: add grad_y to the gradient of x"
NORM_SKIPPED = "the gradient did not go back through the normalisation: see normalize_backward"
PARTIAL_ROWS = (
    "each rank took its rows from its own partial gradient. Every rank used every row, so sum the"
    " partial gradients with a reduce-scatter"
)
OWN_ROWS = (
    "this gradient comes from this rank's own rows only. Each rank needs the gradients and the"
    " inputs of all rows"
)
NOT_NORMALIZED_INPUT = (
    "the gradient of A was computed from x. Use normalize(x), which is the input of A"
)

FROM_Z = "the gradient of B was computed from z. The input of B is gelu(z)"
NO_DERIVATIVE = "the derivative of gelu is missing: grad_z = grad_h ⊙ gelu′(z)"
DIRECT_SUMMED = (
    "grad_y was added on every rank before the sum, and went through normalize_backward. Add it"
    " once, at the end"
)
SUM_DIVIDED = (
    "the sum over the ranks was divided by n. Add up the partial gradients without dividing"
)

OWN_BLOCK = (
    "each query saw the keys of its own rank only. Pass keys and values around the ring, and use"
    " every block that arrives, also the last one"
)
OVERFLOWED = (
    "exp(score) overflowed, and inf/inf is nan. Compute exp(score − M), with the largest score M"
)
NORMALIZED_ADDED = "the normalised rows were added. Add x itself"
OF_NORMALIZED = "normalize_backward got normalised rows. Its first argument must be x"
BEFORE_NORM = "grad_y went through normalize_backward, too. Add grad_y after normalize_backward"
OF_ALL_SHARDS = (
    "the gradients of different shards were added up. The gradient of a shard is complete on its"
    " own rank: use no all-reduce"
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


def split(array: np.ndarray, n: int) -> list[np.ndarray]:
    """Return n equal parts of an array: the consecutive rows of each rank."""
    return np.split(array, n)


# ——— the sequence-parallel pair


def normalize(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt(np.mean(x**2, axis=1, keepdims=True) + 1e-12)


def normalize_backward(x: np.ndarray, grad: np.ndarray) -> np.ndarray:
    y = normalize(x)
    r = np.sqrt(np.mean(x**2, axis=1, keepdims=True) + 1e-12)
    return (grad - y * np.mean(y * grad, axis=1, keepdims=True)) / r


def pair_forward(a: np.ndarray, b: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (y, z) for the whole sequence: z = normalize(x) A and y = x + gelu(z) B."""
    z = normalize(x) @ a
    return x + gelu(z) @ b, z


def pair_backward(
    a: np.ndarray, b: np.ndarray, x: np.ndarray, grad_y: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the gradients of x, A and B for the whole sequence."""
    rows = normalize(x)
    z = rows @ a
    grad_z = (grad_y @ b.T) * gelu_derivative(z)
    return grad_y + normalize_backward(x, grad_z @ a.T), rows.T @ grad_z, gelu(z).T @ grad_y


def pair_mistakes(a: np.ndarray, b: np.ndarray, x: np.ndarray, n: int) -> list[dict[str, Any]]:
    """Return, for each rank, a dict from each mistake to the rank's rows of y."""
    right, z = pair_forward(a, b, x)
    own_a, own_b, own_x = np.split(a, n, 1), np.split(b, n), split(x, n)
    made: dict[str, list] = {
        NO_RESIDUAL: split(right - x, n),
        UNNORMALIZED: split(x + gelu(x @ a) @ b, n),
        NORMALIZED_ADDED: split(right - x + normalize(x), n),
        SECOND_GELU: split(x + gelu(right - x), n),
        NO_GELU: split(x + z @ b, n),
    }
    if n > 1:
        partial = [gelu(normalize(x) @ own_a[r]) @ own_b[r] for r in range(n)]
        made[PARTIAL] = [own_x[r] + split(partial[r], n)[r] for r in range(n)]
        made[AVERAGED] = split(x + (right - x) / n, n)
        made[f"{SECOND_GELU}. It was applied to the partial products"] = split(
            x + sum(gelu(own) for own in partial), n
        )
        made[RESIDUAL_SUMMED] = split(right + (n - 1) * x, n)
        made[f"{RESIDUAL_SUMMED} (x itself, not the normalised rows)"] = split(
            right - x + n * normalize(x), n
        )
        mixed = sum(gelu(normalize(own_x[r]) @ own_a[r]) @ own_b[r] for r in range(n))
        made[NOT_GATHERED] = [own + mixed for own in own_x]
    return by_rank(made, n)


def saved_mistakes(a: np.ndarray, x: np.ndarray, n: int) -> list[dict[str, Any]]:
    """Return, for each rank, a dict from each mistake to the pair (x, z) that the rank saves."""
    z = [normalize(x) @ own for own in np.split(a, n, 1)]
    own_x = split(x, n)
    made: dict[str, list] = {
        NORMALIZED_SAVED: [(normalize(own_x[r]), z[r]) for r in range(n)],
        AFTER_GELU: [(own_x[r], gelu(z[r])) for r in range(n)],
        UNNORMALIZED: list(zip(own_x, [x @ own for own in np.split(a, n, 1)])),
    }
    return by_rank(made, n)


def pair_backward_mistakes(
    a: np.ndarray, b: np.ndarray, x: np.ndarray, grad_y: np.ndarray, n: int
) -> tuple[list[dict], list[dict]]:
    """Return two lists of dicts of mistakes, with one dict for each rank.

    The values are gradients of x in the first list, and gradients of (A, B) in the second.
    """
    rows, own_x, own_grad = normalize(x), split(x, n), split(grad_y, n)
    own_a, own_b = np.split(a, n, 1), np.split(b, n)
    z = [rows @ own for own in own_a]
    grad_z = [(grad_y @ own_b[r].T) * gelu_derivative(z[r]) for r in range(n)]
    whole = sum(grad_z[r] @ own_a[r].T for r in range(n))
    of_x: dict[str, list] = {
        NO_DIRECT_WAY: split(normalize_backward(x, whole), n),
        NORM_SKIPPED: split(grad_y + whole, n),
        OF_NORMALIZED: split(grad_y + normalize_backward(rows, whole), n),
        BEFORE_NORM: split(normalize_backward(x, whole + grad_y), n),
    }
    of_pair: dict[str, list] = {
        NOT_NORMALIZED_INPUT: [(x.T @ grad_z[r], gelu(z[r]).T @ grad_y) for r in range(n)],
        FROM_Z: [(rows.T @ grad_z[r], z[r].T @ grad_y) for r in range(n)],
    }
    bare = [grad_y @ own.T for own in own_b]
    of_x[NO_DERIVATIVE] = split(grad_y + normalize_backward(x, (grad_y @ b.T) @ a.T), n)
    of_pair[NO_DERIVATIVE] = [(rows.T @ bare[r], gelu(z[r]).T @ grad_y) for r in range(n)]
    if n > 1:
        of_x[DIRECT_SUMMED] = split(normalize_backward(x, whole + n * grad_y), n)
        of_x[SUM_DIVIDED] = split(grad_y + normalize_backward(x, whole / n), n)
        total = sum(rows.T @ own for own in grad_z), sum(gelu(own).T @ grad_y for own in z)
        of_pair[OF_ALL_SHARDS] = [total] * n
        partial = [split(grad_z[r] @ own_a[r].T, n)[r] for r in range(n)]
        of_x[PARTIAL_ROWS] = [
            own_grad[r] + normalize_backward(own_x[r], partial[r]) for r in range(n)
        ]
        of_pair[OWN_ROWS] = [
            (
                split(rows, n)[r].T @ split(grad_z[r], n)[r],
                gelu(split(z[r], n)[r]).T @ own_grad[r],
            )
            for r in range(n)
        ]
    return by_rank(of_x, n), by_rank(of_pair, n)


# ——— attention


def visible(tokens: int, causal: bool) -> np.ndarray:
    """Return a mask. Its entry [i, j] is True if query i sees key j."""
    return np.tri(tokens, dtype=bool) if causal else np.ones((tokens, tokens), bool)


def softmax(q: np.ndarray, k: np.ndarray, seen: np.ndarray, scale: float) -> tuple:
    """Return (weights, largest, total): the attention weights, and two numbers for each query.

    ``largest`` is the largest score, and ``total`` is the sum of exp(score − largest).
    """
    scores = np.where(seen, (q @ k.T) * scale, -np.inf)
    largest = scores.max(axis=1, keepdims=True)
    weights = np.exp(scores - largest)
    total = weights.sum(axis=1, keepdims=True)
    return weights / total, largest, total


def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, seen: np.ndarray, scale: float | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return (output, logsumexp) for the whole sequence."""
    weights, largest, total = softmax(q, k, seen, scale or q.shape[1] ** -0.5)
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

    A pair of query i and key j adds to the gradients only if ``blocks[i, j]`` is True. By default,
    all pairs do. In both cases, the attention weights are those of all visible pairs. If
    ``row_sum`` is False, the sum Σ grad_o ⊙ o is left out.
    """
    scale = q.shape[1] ** -0.5
    weights, _, _ = softmax(q, k, visible(len(q), causal), scale)
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


def blocks_of(tokens: int, n: int) -> np.ndarray:
    """Return a mask. Its entry [i, j] is True if query i and key j belong to the same rank."""
    owner = np.arange(tokens) // (tokens // n)
    return owner[:, None] == owner[None, :]


def attention_mistakes(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool, n: int
) -> list[dict[str, Any]]:
    """Return, for each rank, a dict from each mistake to the rank's (output, logsumexp)."""
    tokens, width = q.shape
    seen = visible(tokens, causal)
    output, logsumexp = attention(q, k, v, seen)
    _, largest, total = softmax(q, k, seen, width**-0.5)
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
    """Return causal attention in which no token sees itself.

    The result is that of ring attention. In a rank's own block, the rank's first query then has
    only scores of −∞. The query's exponentials are NaN, so its output and logsumexp are NaN, too.
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
    weights, largest, total = softmax(q, k, seen, q.shape[1] ** -0.5)
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
    scores = np.where(np.tri(len(q), dtype=bool), (q @ k.T) * q.shape[1] ** -0.5, 0.0)
    scores = np.where(used, scores, -np.inf)
    largest = scores.max(axis=1, keepdims=True)
    weights = np.exp(scores - largest)
    total = weights.sum(axis=1, keepdims=True)
    return weights @ v / total, (largest + np.log(total))[:, 0]


def _by_blocks(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, seen: np.ndarray, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return attention that subtracts from each score the largest score of the key's block."""
    scores = np.where(seen, (q @ k.T) * q.shape[1] ** -0.5, -np.inf)
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
    scores = np.where(seen, (q @ k.T) * q.shape[1] ** -0.5, -np.inf)
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
    """Return, for each rank, a dict from each mistake to the rank's gradients of q, k and v."""
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
    """Return a dict from each mistake in the attention weights P to the gradients of q, k and v."""
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
    # If scores are large, these numbers overflow. Then they explain nothing.
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
