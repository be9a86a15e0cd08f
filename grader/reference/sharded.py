"""Computes what each rank holds if a model is sharded, and what well-known mistakes give instead.

All values are in numpy and float64, on top of the single device in ``single_device``. Lists of
results have one entry for each rank. The keys of a dict of mistakes are the sentences that name the
mistakes.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from grader.reference.single_device import AdamW, gelu, gelu_derivative
from grader.reference.training_mistakes import (
    ADDED_UP,
    ALONE_ON_RANK,
    DEFAULT_RATE,
    DESCENT,
    FRESH,
    PLAIN,
    SUMMED,
    WEIGHTS_AVERAGED,
    Descent,
)

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
    "every tensor was cut from the beginning of flat. Each tensor begins where the previous one"
    " ends"
)

NEW_TENSORS = (
    "the caller's tensors kept their values. Write the new values into them, for example by copy_"
)
OWN_ONLY = "only this rank's shard was updated. All-gather the shards after the step"
BEFORE_THE_STEP = "these are the weights before the last step. Gather the shards after the update"
NOT_SCATTERED = (
    "only this rank's own gradients were used. Reduce-scatter the gradients of all ranks"
)
SUMMED_SHARDS = "the gradients were summed over the ranks. Divide the sum by the number of ranks"
OTHER_LAYER = (
    "these are the right shards in reverse order. The list must begin with the first layer"
)
OTHER_SHARD = "this is rank {}'s shard of the gradients. Rank r must return shard r"
NOT_CALLED = (
    "a layer was computed without the {}. Call the arguments layer_forward and layer_backward, not"
    " the functions of mlp, once for every layer"
)
AVERAGED_LOSS = "this is the average over the ranks. Return this rank's own loss"


def padding(entries: int, n: int) -> int:
    """Return how many zeros make a number of entries a multiple of n."""
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
    """Return arrays shaped as those in ``like``, from a flat vector. The padding is dropped."""
    ends = np.cumsum([np.size(array) for array in like])
    pieces = np.split(vector, ends)[: len(like)]
    return [piece.reshape(np.shape(array)) for piece, array in zip(pieces, like)]


def flat_mistakes(arrays: Sequence[Any], n: int) -> dict[str, np.ndarray]:
    """Return a dict from the sentence of each mistaken ``flatten`` to its result."""
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
    """Return, for each rank, a dict from the sentence of each mistaken shard to the shard."""
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


# ——— ZeRO-1


def zero(
    weights: list, gradients: list, lr: float, optimizer: Callable[[float], Any] = AdamW
) -> tuple[list, list]:
    """Return the weights after every step, and the optimizer's state: (moment, moment) by tensor.

    ``gradients[step]`` are the averaged gradients of a step.
    """
    weights = [np.asarray(w, np.float64) for w in weights]
    made, after = optimizer(lr), []
    for of_step in gradients:
        weights = made.step(weights, of_step)
        after.append(weights)
    return after, getattr(made, "moments", [])


def averages(gradients: list) -> list:
    """Return the averages over the ranks, from ``gradients[rank][step][tensor]``."""
    n = len(gradients)
    return [
        [
            np.asarray(sum(np.asarray(g, np.float64) for g in of_ranks) / n)
            for of_ranks in zip(*step)
        ]
        for step in zip(*gradients)
    ]


def zero_mistakes(weights: list, gradients: list, lr: float) -> list[dict[str, list]]:
    """Return, for each rank, the weights after every step of a mistaken training.

    ``gradients[rank][step]`` are a rank's own gradients.
    """
    n = len(gradients)
    right, average = zero(weights, averages(gradients), lr)[0], averages(gradients)
    made = {
        PLAIN: zero(weights, average, lr, lambda lr: AdamW(lr, decay=0.0))[0],
        DESCENT: zero(weights, average, lr, Descent)[0],
        FRESH: _with_fresh_optimizers(weights, average, lr),
        ADDED_UP: zero(weights, _added_up(average), lr)[0],
    }
    if lr != 1e-3:
        made[DEFAULT_RATE] = zero(weights, average, 1e-3)[0]
    if n == 1:
        return [made]
    made[SUMMED] = zero(weights, [[n * g for g in step] for step in average], lr)[0]
    alone = [zero(weights, own, lr)[0] for own in gradients]
    made[WEIGHTS_AVERAGED] = _with_averaged_weights(weights, gradients, lr)
    before = [[np.asarray(w, np.float64) for w in weights], *right[:-1]]
    made[BEFORE_THE_STEP] = before
    return [
        made
        | {
            OWN_ONLY: [_own_updated(weights, step, n, rank) for step in right],
            NOT_SCATTERED: _gathered(alone, n),
            "each rank trained only with its own gradients": alone[rank],
        }
        for rank in range(n)
    ]


def _added_up(steps: list) -> list:
    """Return gradients to which those of all earlier steps were added."""
    return [[sum(of_tensor) for of_tensor in zip(*steps[: k + 1])] for k in range(len(steps))]


def _with_fresh_optimizers(weights: list, average: list, lr: float) -> list:
    after: list = []
    for step in average:
        after.append(AdamW(lr).step(after[-1] if after else weights, step))
    return after


def _with_averaged_weights(weights: list, gradients: list, lr: float) -> list:
    """Return the weights after every step if each rank makes its own, and weights are averaged."""
    n, after = len(gradients), [[np.asarray(w, np.float64) for w in weights]]
    optimizers = [AdamW(lr) for _ in gradients]
    for step in zip(*gradients):
        own = [made.step(after[-1], of_rank) for made, of_rank in zip(optimizers, step)]
        after.append([sum(of_tensor) / n for of_tensor in zip(*own)])
    return after[1:]


def _own_updated(weights: list, moved: list, n: int, rank: int) -> list:
    """Return the weights with one rank's shard updated, and the others as they were."""
    pieces = shards([np.asarray(w, np.float64) for w in weights], n)
    pieces[rank] = shards(moved, n)[rank]
    return unflat(np.concatenate(pieces), weights)


def _gathered(alone: list, n: int) -> list:
    """Return the weights of every step, put together from each rank's shard of its own weights."""
    return [
        unflat(np.concatenate([shards(own, n)[r] for r, own in enumerate(step)]), step[0])
        for step in zip(*alone)
    ]


def state_mistakes(weights: list, gradients: list, lr: float, moment: int) -> list[dict]:
    """Return, for each rank, its shard of a moment after a mistaken training.

    ``moment`` is 0 for the mean of the gradients, and 1 for the mean of their squares.
    """
    n, average = len(gradients), averages(gradients)
    if n == 1:
        return [{}]
    summed = [[n * g for g in step] for step in average]
    divided = [[g / n for g in step] for step in average]
    known = {
        SUMMED_SHARDS: summed,
        "the gradients were divided by the number of ranks one time too many": divided,
    }

    def shards_of(steps: list) -> list[np.ndarray]:
        return shards([moments[moment] for moments in zero(weights, steps, lr)[1]], n)

    of_ranks = [shards_of(own) for own in gradients]
    right = shards_of(average)
    return [
        {name: shards_of(steps)[rank] for name, steps in known.items()}
        | {NOT_SCATTERED: of_ranks[rank][rank]}
        | {OTHER_RANK.format(other): right[other] for other in range(n) if other != rank}
        for rank in range(n)
    ]


# ——— fully sharded


def scaled_step(
    weights: list, x: np.ndarray, forward: Sequence[float], backward: Sequence[float]
) -> tuple[float, list]:
    """Return the loss, and what a backward pass gives for every weight, with factors.

    The output of layer l is multiplied by ``forward[l]``. Going back, the gradient of this output
    is multiplied by ``backward[l]``. With all factors 1, this is ``loss_and_gradients`` of
    ``single_device``.
    """
    y, saved = np.asarray(x, np.float64), []
    for weight, factor in zip(weights, forward):
        z = y @ np.asarray(weight, np.float64)
        saved.append((y, z))
        y = factor * gelu(z)
    loss, grad = float(np.mean(y**2)), 2 * y / y.size
    gradients: list[np.ndarray] = []
    for weight, (own, z), factor in reversed(list(zip(weights, saved, backward))):
        grad_z = factor * grad * gelu_derivative(z)
        gradients.insert(0, own.T @ grad_z)
        grad = grad_z @ np.asarray(weight, np.float64).T
    return loss, gradients


def gradient_shards(gradients: list, dtype: Any = np.float64) -> list[list[np.ndarray]]:
    """Return ``[rank][layer]``, the shards of the averages of ``gradients[rank][layer]``."""
    n = len(gradients)
    average = [np.asarray(sum(of_layer) / n, dtype) for of_layer in zip(*gradients)]
    return layers_of(average, n)


def sharded_mistakes(gradients: list) -> list[dict[str, list]]:
    """Return, for each rank, a dict from the sentence of a mistaken step to its gradient shards.

    ``gradients[rank][layer]`` are the gradients of a rank's own loss.
    """
    n, layers = len(gradients), len(gradients[0])
    right = gradient_shards(gradients)
    found = []
    for rank in range(n):
        known: dict[str, list] = {}
        if n > 1:
            known[ALONE_ON_RANK] = layers_of(gradients[rank], n)[rank]
            known[SUMMED_SHARDS] = [n * g for g in right[rank]]
            known |= {OTHER_SHARD.format(r): right[r] for r in range(n) if r != rank}
        if layers > 1:
            known[OTHER_LAYER] = right[rank][::-1]
        found.append(known)
    return found


def uncalled_mistakes(
    weights: list, batches: list, forward: Sequence[float], backward: Sequence[float]
) -> list[dict[str, list]]:
    """Return, for each rank, its gradient shards if layers were computed by other functions.

    The factors of ``scaled_step`` are those of the functions that should have been called.
    """
    ones = [1.0] * len(weights)
    ways = {
        "argument layer_backward": (forward, ones),
        "argument layer_forward": (ones, backward),
        "arguments layer_forward and layer_backward": (ones, ones),
    }
    made = {
        NOT_CALLED.format(name): gradient_shards(local_steps(weights, batches, *factors)[1])
        for name, factors in ways.items()
    }
    return [{name: own[rank] for name, own in made.items()} for rank in range(len(batches))]


def layer_bytes(width: int, n: int, itemsize: int) -> int:
    """Return the bytes of one layer, padded to a multiple of n."""
    return n * math.ceil(width * width / n) * itemsize


def local_steps(weights: list, batches: list, *factors: Sequence[float]) -> tuple[list, list]:
    """Return each rank's own loss and its own gradients, from its own rows.

    ``factors`` are those of ``scaled_step``; they may be left out.
    """
    factors = factors or ([1.0] * len(weights),) * 2
    made = [scaled_step(weights, own, *factors) for own in batches]
    return [loss for loss, _ in made], [gradients for _, gradients in made]
