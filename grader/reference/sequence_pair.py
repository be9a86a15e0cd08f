"""Computes a sequence-parallel pair of layers, and the results of well-known mistakes.

The pair is computed as on one device. All values are in numpy and float64. Lists have one entry for
each rank. In a dict of mistakes, each key is the sentence that describes one mistake.
"""

from typing import Any

import numpy as np

from grader.reference.by_rank import by_rank, split
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

NORMALIZED_ADDED = "the normalised rows were added. Add x itself"
OF_NORMALIZED = "normalize_backward got normalised rows. Its first argument must be x"
BEFORE_NORM = "grad_y went through normalize_backward, too. Add grad_y after normalize_backward"
OF_ALL_SHARDS = (
    "the gradients of different shards were added up. The gradient of a shard is complete on its"
    " own rank: use no all-reduce"
)


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
    """Return one dict of mistakes for each rank. The values are the rank's rows of y."""
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
    """Return one dict of mistakes for each rank. The values are the pairs (x, z) that it saves."""
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
