"""Computes each rank's shards, loss and gradients, and the results of well-known mistakes.

All values are in numpy and float64. Lists of results have one entry for each rank. In a dict of
mistakes, each key is the sentence that describes one mistake.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grader.reference.by_rank import by_rank
from grader.reference.data_parallel import SAVED_OUTPUT
from grader.reference.single_device import gelu, gelu_derivative

EVERY_NTH = "every n-th entry was taken. A flat shard holds consecutive entries"
UNPADDED = (
    "the padding is missing. Pad with zeros to a multiple of n, so that all shards have the same"
    " size"
)
FRONT = "the zeros are in front. Pad at the end"
FULL_BLOCK = "a whole block of n zeros was added, although n divides the number of entries"
BY_COLUMNS = (
    "a tensor was flattened in column-major order. Use row-major order, as reshape(-1) does"
)
EACH_PADDED = "each tensor was padded on its own. Put the entries of all tensors together, then pad"
REVERSED_TENSORS = "the tensors are in reverse order"
OTHER_RANK = "this is the shard of rank {}"
FROM_THE_START = (
    "every tensor was cut from the beginning of flat. Each tensor begins where the previous tensor"
    " ends"
)

SUMMED_SHARDS = "the gradients were summed over the ranks. Divide the sum by the number of ranks"
OTHER_LAYER = (
    "these are the right shards in reverse order. The list must begin with the first layer"
)
OTHER_SHARD = "this is rank {}'s shard of the gradients. Rank r must return shard r"
NOT_CALLED = (
    "a layer was computed without a call of {}. For every layer, call both arguments, layer_forward"
    " and layer_backward, once. Do not call the functions of mlp directly"
)
OWN_GRADIENTS = (
    "these are this rank's own gradients. They were never added up over the ranks, or the sum was"
    " not used. Each rank returns its shard of the average over all ranks"
)
WHOLE_GRADIENTS = "these are the whole gradients. Return this rank's flat shards of them"
OWN_DIVIDED = (
    "these are this rank's own gradients, divided by the number of ranks. They were never added up"
    " over the ranks, or the sum was not used"
)
ONE_BUFFER = (
    "each layer was computed with the weight of the layer that is gathered next. Do all gathers"
    " write into one tensor? Gather the next layer into another tensor"
)
AVERAGED_LOSS = "this is the average over the ranks. Return this rank's own loss"


GOLDEN = 0.6180339887498949  # (√5 − 1) / 2


def padding(entries: int, n: int) -> int:
    """Return the number of zeros that pad ``entries`` entries to a multiple of n."""
    return -entries % n


def flat(arrays: Sequence[Any], n: int) -> np.ndarray:
    """Return the entries of all arrays in row-major order, padded to a multiple of n."""
    together = np.concatenate([np.asarray(array).reshape(-1) for array in arrays])
    return np.concatenate([together, np.zeros(padding(len(together), n), together.dtype)])


def shards(arrays: Sequence[Any], n: int) -> list[np.ndarray]:
    """Return each rank's flat shard of the arrays."""
    return np.split(flat(arrays, n), n)


def layers_of(weights: Sequence[Any], n: int) -> list[list[np.ndarray]]:
    """Return, for each rank, its flat shard of every layer: ``[rank][layer]``."""
    return [list(of_rank) for of_rank in zip(*(shards([weight], n) for weight in weights))]


def unflat(vector: np.ndarray, like: Sequence[Any]) -> list[np.ndarray]:
    """Cut a flat vector into arrays of the same shapes as in ``like``. Drop the padding."""
    ends = np.cumsum([np.size(array) for array in like])
    pieces = np.split(vector, ends)[: len(like)]
    return [piece.reshape(np.shape(array)) for piece, array in zip(pieces, like)]


def flat_mistakes(arrays: Sequence[Any], n: int) -> dict[str, np.ndarray]:
    """Return a dict of mistakes in ``flatten``. The values are wrong flat tensors."""
    right = flat(arrays, n)
    added = len(right) - sum(np.size(array) for array in arrays)
    kept = len(right) - added
    zero = right[:0]
    known = {
        UNPADDED: right[:kept],
        FRONT: np.concatenate([right[kept:], right[:kept]]),
        BY_COLUMNS: flat([np.asarray(array).ravel("F") for array in arrays], n),
        REVERSED_TENSORS: flat(arrays[::-1], n),
        EACH_PADDED: np.concatenate([zero, *(flat([array], n) for array in arrays)]),
    }
    if not added:
        known[FULL_BLOCK] = np.concatenate([right, np.zeros(n, right.dtype)])
    return _different(known, right)


def shard_mistakes(arrays: Sequence[Any], n: int) -> list[dict[str, np.ndarray]]:
    """Return one dict of mistakes for each rank. The values are wrong shards."""
    right, whole = shards(arrays, n), flat(arrays, n)
    size = sum(np.size(array) for array in arrays)
    found = []
    for rank in range(n):
        known = {
            EVERY_NTH: whole[rank::n],
            UNPADDED: np.array_split(whole[:size], n)[rank],
            BY_COLUMNS: shards([np.asarray(array).ravel("F") for array in arrays], n)[rank],
        }
        known |= {OTHER_RANK.format(other): right[other] for other in range(n) if other != rank}
        found.append(_different(known, right[rank]))
    return found


def _different(known: dict[str, np.ndarray], right: np.ndarray) -> dict[str, np.ndarray]:
    return {name: value for name, value in known.items() if not np.array_equal(value, right)}


# ——— fully sharded


def scaled_step(
    weights: list, x: np.ndarray, forward: Sequence[float], backward: Sequence[float]
) -> tuple[float, list]:
    """Make a step with factors, and return the loss and the gradient of every weight.

    The output of layer l is multiplied by ``forward[l]``. In the backward pass, the gradient of
    this output is multiplied by ``backward[l]``. If all factors are 1, the results are those of
    ``single_device.loss_and_gradients``.
    """
    given = followed_step(weights, x, forward, backward)
    return given.loss, given.gradients


@dataclass
class Followed:
    """The results of a step with factors, and the arguments and results of each layer's functions.

    ``inputs[l]`` is the argument x of the forward function of layer l. ``grads[l]`` is the argument
    grad_y of the layer's backward function. ``outputs[l]`` is y before the multiplication by the
    factor ``forward[l]``. ``results[l]`` is (grad_x, gradient) before both are multiplied by the
    factor ``backward[l]``.
    """

    loss: float
    gradients: list[np.ndarray]
    inputs: list[np.ndarray]
    grads: list[np.ndarray]
    outputs: list[np.ndarray]
    results: list[tuple[np.ndarray, np.ndarray]]


def followed_step(
    weights: list,
    x: np.ndarray,
    forward: Sequence[float],
    backward: Sequence[float],
    backward_weights: Sequence[np.ndarray] = (),
) -> Followed:
    """Make the step of ``scaled_step``. Return its results, and also the values inside the step.

    These values are the arguments and the results of each layer's two functions: see ``Followed``.
    If ``backward_weights`` are given, the backward pass uses them in place of ``weights``.
    """
    y, saved = np.asarray(x, np.float64), []
    for weight, factor in zip(weights, forward):
        z = y @ np.asarray(weight, np.float64)
        saved.append((y, z))
        y = factor * gelu(z)
    grad = 2 * y / y.size
    grads: list[np.ndarray] = []
    results: list[tuple[np.ndarray, np.ndarray]] = []
    used = backward_weights or weights
    for weight, (own, z), factor in reversed(list(zip(used, saved, backward))):
        grads.insert(0, grad)
        grad_z = grad * gelu_derivative(z)
        results.insert(0, (grad_z @ np.asarray(weight, np.float64).T, own.T @ grad_z))
        grad = factor * results[0][0]
    return Followed(
        loss=float(np.mean(y**2)),
        gradients=[factor * gradient for factor, (_, gradient) in zip(backward, results)],
        inputs=[own for own, _ in saved],
        grads=grads,
        outputs=[gelu(z) for _, z in saved],
        results=results,
    )


def renewed_weight(weight: np.ndarray, noise: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return a weight near ``weight + noise`` that gives the same product with ``rows``.

    ``rows`` must have fewer rows than columns.
    """
    basis, _ = np.linalg.qr(np.asarray(rows, np.float64).T)
    return np.asarray(weight + noise - basis @ (basis.T @ noise))


def fingerprint(array: np.ndarray) -> float:
    """Return the number that the driver ``followed_layers`` reports for a tensor.

    The number depends on every entry, and on the order of the entries.
    """
    entries = np.asarray(array, np.float64).reshape(-1)
    # As in the driver, the factors from 1 to 2 are irregular. So errors in many entries do not
    # cancel.
    return float(entries @ (1 + np.modf(np.arange(len(entries)) * GOLDEN)[0]))


def is_fingerprint(told: float, array: np.ndarray) -> bool:
    """Return whether a number is the fingerprint of an array, up to rounding errors."""
    return abs(told - fingerprint(array)) <= 1e-6 * float(np.abs(array).sum())


def gradient_shards(gradients: list, dtype: Any = np.float64) -> list[list[np.ndarray]]:
    """Average the gradients over the ranks, and return the shards of the averages.

    Both the argument and the result are indexed by ``[rank][layer]``.
    """
    n = len(gradients)
    average = [np.asarray(sum(of_layer) / n, dtype) for of_layer in zip(*gradients)]
    return layers_of(average, n)


def sharded_mistakes(gradients: list) -> list[dict[str, list]]:
    """Return one dict of mistakes for each rank. The values are the rank's gradient shards.

    ``gradients[rank][layer]`` are the gradients of a rank's own loss.
    """
    n, layers = len(gradients), len(gradients[0])
    right = gradient_shards(gradients)
    found = []
    for rank in range(n):
        known: dict[str, list] = {}
        if n > 1:
            known[OWN_GRADIENTS] = layers_of(gradients[rank], n)[rank]
            known[SUMMED_SHARDS] = [n * g for g in right[rank]]
            average = [sum(of_layer) / n for of_layer in zip(*gradients)]
            known[WHOLE_GRADIENTS] = average
            known[f"{WHOLE_GRADIENTS}. Your gradients are flat, but not cut"] = [
                flat([g], n) for g in average
            ]
            known[OWN_DIVIDED] = [own / n for own in layers_of(gradients[rank], n)[rank]]
            known |= {OTHER_SHARD.format(r): right[r] for r in range(n) if r != rank}
        if layers > 1:
            known[OTHER_LAYER] = right[rank][::-1]
        found.append(known)
    return found


def step_mistakes(weights: list, batches: list, *factors: Sequence[float]) -> list[dict[str, list]]:
    """Return one dict of mistakes for each rank. The values are the rank's gradient shards.

    ``factors`` are the arguments ``forward`` and ``backward`` of ``scaled_step``. For a step that
    gets no functions as arguments, they are left out.
    """
    known = _saved_mistakes(weights, batches, *factors)
    if factors:
        uncalled = _uncalled_mistakes(weights, batches, *factors)
        overwritten = _one_buffer_mistakes(weights, batches, *factors)
        known = [a | b | c for a, b, c in zip(uncalled, overwritten, known)]
    return known


def _uncalled_mistakes(
    weights: list, batches: list, forward: Sequence[float], backward: Sequence[float]
) -> list[dict[str, list]]:
    """Return one dict of mistakes for each rank. The values are the rank's gradient shards.

    In each mistake, a step does not call its argument ``layer_forward``, or ``layer_backward``, or
    both. These functions multiply by the factors ``forward`` and ``backward``, as in
    ``scaled_step``. For a function that is not called, the factors are 1.
    """
    ones = [1.0] * len(weights)
    ways = {
        "layer_backward": (forward, ones),
        "layer_forward": (ones, backward),
        "layer_forward and layer_backward": (ones, ones),
    }
    made = {
        NOT_CALLED.format(name): gradient_shards(local_steps(weights, batches, *factors)[1])
        for name, factors in ways.items()
    }
    return by_rank(made, len(batches))


def _one_buffer_mistakes(
    weights: list, batches: list, forward: Sequence[float], backward: Sequence[float]
) -> list[dict[str, list]]:
    """Return one dict with one mistake for each rank. The values are the rank's gradient shards.

    The mistake is a step that gathers every layer into the same tensor. While a layer is computed,
    the gather of the next layer overwrites this tensor.
    """
    ahead = weights[1:] + weights[-1:], weights[:1] + weights[:-1]
    made = [
        followed_step(ahead[0], own, forward, backward, backward_weights=ahead[1]).gradients
        for own in batches
    ]
    return by_rank({ONE_BUFFER: gradient_shards(made)}, len(batches))


def _saved_mistakes(
    weights: list, batches: list, forward: Sequence[float] = (), backward: Sequence[float] = ()
) -> list[dict[str, list]]:
    """Return one dict with one mistake for each rank. The values are the rank's gradient shards.

    The mistake is a step that saves each layer's output in place of its input. By default, all
    factors of ``scaled_step`` are 1.
    """
    factors = (forward, backward) if forward else ([1.0] * len(weights),) * 2
    made = []
    for own in batches:
        given = followed_step(weights, own, *factors)
        outputs = [factor * y for factor, y in zip(factors[0], given.outputs)]
        of_z = [
            grad * gelu_derivative(x @ np.asarray(weight, np.float64))
            for grad, x, weight in zip(given.grads, given.inputs, weights)
        ]
        made.append([f * (y.T @ grad_z) for f, y, grad_z in zip(factors[1], outputs, of_z)])
    return by_rank({SAVED_OUTPUT: gradient_shards(made)}, len(batches))


def layer_bytes(width: int, n: int, itemsize: int) -> int:
    """Return the bytes of a (width, width) weight, padded to a multiple of n entries."""
    return n * math.ceil(width * width / n) * itemsize


def local_steps(weights: list, batches: list, *factors: Sequence[float]) -> tuple[list, list]:
    """Return each rank's own loss and its own gradients, from its own rows.

    ``factors`` are the arguments ``forward`` and ``backward`` of ``scaled_step``. If they are not
    given, all factors are 1.
    """
    factors = factors or ([1.0] * len(weights),) * 2
    made = [scaled_step(weights, own, *factors) for own in batches]
    return [loss for loss, _ in made], [gradients for _, gradients in made]
