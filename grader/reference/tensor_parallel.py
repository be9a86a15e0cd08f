"""Computes shards of weights, and the results of known mistakes in tensor parallelism.

All values are numpy arrays in float64, computed with the functions of ``single_device``. Lists of
results have one entry for each rank. In a dict of mistakes, each key is the sentence that describes
one mistake.
"""

import math
from collections.abc import Callable

import numpy as np

from grader.reference.single_device import backward, gelu, gelu_derivative

SPLIT = (
    "between two layers every rank took its columns of its own partial gradient."
    " Add the partial gradients of all ranks first (reduce-scatter, not split)"
)
SPLIT_ALSO_X = f"{SPLIT}. The partial gradients of x were not added up, either"
OWN_PARTIAL = (
    "this is still partial: only this rank's part of the sum. Add the parts of the other ranks"
)
ADDED_REPLICATED = (
    "grad_y was added up over the ranks, but it is replicated: every rank already has the complete"
    " gradient"
)
AS_IT_LIES = (
    "entries were added in the order in which they lie in memory, but the layout differs between"
    " ranks. Communicate contiguous memory"
)
GRADIENT_WRITTEN = (
    "the backward pass of f wrote into grad_y. contiguous() makes no copy of a contiguous tensor:"
    " use grad_y.clone(memory_format=torch.contiguous_format)"
)
TIMES_N = (
    "this is n times the gradient. It was added up twice, or grad_y, which is replicated, was added"
    " up, too"
)
AVERAGED_PARTIAL = "a partial gradient was averaged over the ranks. Add it up without dividing"
AGAIN = (
    "the backward pass of g added up the gradient over the ranks. But this gradient is replicated:"
    " every rank already has the complete gradient"
)
AGAIN_NOT_IN_F = f"{AGAIN}. The backward pass of f did not add up its gradient, which is partial"
F_BEFORE_GELU = "f was applied after the product with A. Apply it to x, before this product"
F_AFTER_GELU = "f was applied after the first gelu. Apply it to x, before the product with A"
CUT_FIRST = (
    "each rank cut out its own columns, and then these different columns were added up. Add up the"
    " same columns of all ranks: use reduce-scatter"
)
GATHERED = (
    "each rank's columns of its own partial gradient were gathered. Add up the partial gradients of"
    " all ranks first (all-reduce)"
)
OF_ALL_SHARDS = (
    "the gradients of all ranks' shards were added up, as in data parallelism."
    " They are sharded by columns, not partial, so do not add them up"
)
SWAPPED = "f and g are swapped. f goes before the column shard, g after the row shard"
NO_SUM = "gelu was applied to a partial tensor. Add the ranks' summands first"
SAVED_OUTPUT = "a layer's output was saved instead of its input. Save (x, z) before x becomes y"
LATE_Z = "(x, gelu(x @ W)) was saved. z is x @ W, before gelu"
REVERSED_COLUMNS = "the ranks' shards were put together in the wrong order"
STACKED = (
    "the shards were stacked along rows and then reshaped. Shards by columns"
    " belong side by side (dim=1)"
)
CUT_ROWS = (
    "a partial gradient was cut along rows. A rank needs its columns of the sum"
    " (dim=1). reduce_scatter_tensor takes one tensor and cuts it along rows"
)
TANH = "this is gelu's approximation by tanh. Use the exact gelu: F.gelu without “approximate”"
GELU_TWICE = "gelu was applied twice in each layer"
NO_DERIVATIVE = "gelu's derivative was left out"
NO_GELU = "gelu is missing in layer {} (counted from 0) and in all layers after it"
OVERWRITTEN = (
    "a saved input holds the output of layer {} (counted from 0). Did your code overwrite the"
    " input?"
)
ONE_MEMORY = (
    "all parts are the same, because they share one memory. [tensor] * n is a list of one tensor, n"
    " times"
)
UNCHAINED = (
    "every layer began with grad_y. Give each layer the sum of the next layer's partial gradients"
)
FORWARD_ORDER = "the backward pass went from the first layer to the last. Begin with the last layer"
PARTS_OF_LENGTH = (
    "this part has n rows or columns. split(n) makes parts of length n, and tensor_split(n) makes n"
    " parts"
)
EVERY_NTH = "every n-th row or column was taken. Take consecutive ones"
NO_INNER_GELU = "gelu is missing between the two products: this is gelu(x @ A @ B)"
NO_OUTER_GELU = "gelu is missing after the sum"
G_DIVIDES = (
    "g divided the sum by the number of ranks. The ranks' summands add up to the product with B: do"
    " not divide"
)
EARLY_GELU = (
    "gelu was applied before the sum, to a partial tensor. gelu of a sum is not the sum of gelus"
)


def columns(weight: np.ndarray, n: int) -> list[np.ndarray]:
    return np.split(weight, n, axis=1)


def rows(weight: np.ndarray, n: int) -> list[np.ndarray]:
    return np.split(weight, n, axis=0)


def tensor_mistakes(
    weights: list, saved: list, grad_y: np.ndarray, n: int
) -> tuple[list[dict], list[dict]]:
    """Return two lists of dicts of mistakes in the backward pass, with one dict for each rank.

    The values are grad_x in the first list, and the gradients of the rank's shards in the second.
    Each key is the sentence that describes one mistake. On a single rank the dicts are empty.
    """
    if n == 1:
        return [{}], [{}]
    grad_x, whole = backward(weights, saved, grad_y)
    layers = len(weights)
    right = [[columns(g, n)[rank] for g in whole] for rank in range(n)]
    between = {
        SPLIT: lambda partials: [
            columns(partial, n)[rank] for rank, partial in enumerate(partials)
        ],
        CUT_ROWS: lambda partials: _total(partials).reshape(n, len(grad_y), -1),
        CUT_FIRST: lambda partials: [
            sum(columns(partial, n)[rank] for rank, partial in enumerate(partials))
        ]
        * n,
        UNCHAINED: lambda partials: columns(grad_y, n),
    }
    made = {
        name: _backward_on_ranks(weights, saved, grad_y, n, exchange)
        for name, exchange in between.items()
    }
    partials, gradients = _backward_on_ranks(
        weights[::-1], saved[::-1], grad_y, n, lambda own: columns(_total(own), n)
    )
    made[FORWARD_ORDER] = partials, [of_rank[::-1] for of_rank in gradients]
    for name, derivative in ((TANH, tanh_derivative), (NO_DERIVATIVE, np.ones_like)):
        made[name] = _backward_on_ranks(
            weights, saved, grad_y, n, lambda own: columns(_total(own), n), derivative
        )
    partials, _ = _backward_on_ranks(weights, saved, grad_y, n, lambda own: columns(_total(own), n))
    gathered = np.hstack([columns(partial, n)[rank] for rank, partial in enumerate(partials)])
    of_input = [
        {
            GATHERED: gathered,
            OWN_PARTIAL: own_partial(weights, saved, grad_y, n, rank),
            **{name: sum(partials) for name, (partials, _) in made.items()},
            SPLIT_ALSO_X: made[SPLIT][0][rank],
            TIMES_N: n * grad_x,
            AVERAGED_PARTIAL: grad_x / n**layers,
        }
        for rank in range(n)
    ]
    of_shards = [
        {
            **{name: gradients[rank] for name, (_, gradients) in made.items()},
            OF_ALL_SHARDS: [sum(gradients) for gradients in zip(*right)],
            ADDED_REPLICATED: [n * g for g in right[rank]],
            AVERAGED_PARTIAL: [g / n ** (layers - 1 - l) for l, g in enumerate(right[rank])],
        }
        for rank in range(n)
    ]
    return of_input, of_shards


def _total(partials: list) -> np.ndarray:
    """Add up the ranks' partial tensors, in the order of the ranks."""
    return np.asarray(sum(partials))


def own_partial(weights: list, saved: list, grad_y: np.ndarray, n: int, rank: int) -> np.ndarray:
    """Return a rank's partial gradient of the first layer's input, not summed over the ranks."""
    grad_y, _ = backward(weights[1:], saved[1:], grad_y)
    _, z = saved[0]
    grad_z = columns(grad_y * gelu_derivative(z), n)[rank]
    return grad_z @ columns(weights[0], n)[rank].T


def _backward_on_ranks(
    weights: list,
    saved: list,
    grad_y: np.ndarray,
    n: int,
    exchange: Callable,
    derivative: Callable = gelu_derivative,
) -> tuple[list, list]:
    """Return the ranks' partial gradients of x, and for each rank the gradients of its shards.

    Between two layers, ``exchange`` gets the partial gradients of all ranks. It returns, for each
    rank, the gradient with which the rank continues. ``derivative`` is used in place of gelu's
    derivative.
    """
    own, partials = columns(grad_y, n), []
    gradients: list[list[np.ndarray]] = [[] for _ in range(n)]
    for weight, (x, z) in zip(reversed(weights), reversed(saved)):
        grad_z = [own_grad * derivative(own_z) for own_grad, own_z in zip(own, columns(z, n))]
        for rank in range(n):
            gradients[rank].insert(0, x.T @ grad_z[rank])
        partials = [of_rank @ shard.T for of_rank, shard in zip(grad_z, columns(weight, n))]
        own = exchange(partials)
    return partials, gradients


def gelu_by_tanh(z: np.ndarray) -> np.ndarray:
    """Return gelu's approximation by tanh [Hendrycks and Gimpel, 2016, section 2]."""
    return 0.5 * z * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))


def tanh_derivative(z: np.ndarray) -> np.ndarray:
    """Return the derivative of ``gelu_by_tanh``."""
    c = math.sqrt(2 / math.pi)
    t = np.tanh(c * (z + 0.044715 * z**3))
    return 0.5 * (1 + t) + 0.5 * z * (1 - t**2) * c * (1 + 3 * 0.044715 * z**2)


def forward_mistakes(weights: list, x: np.ndarray, n: int) -> dict[str, np.ndarray]:
    """Return a dict of mistakes in a forward pass. Each value is the y that a mistake gives."""
    known = {
        TANH: _forward(weights, x, lambda l, z: gelu_by_tanh(z)),
        GELU_TWICE: _forward(weights, x, lambda l, z: gelu(gelu(z))),
    }
    for first in range(len(weights)):
        known[NO_GELU.format(first)] = _forward(
            weights, x, lambda l, z, k=first: gelu(z) if l < k else z
        )
    if n > 1:
        known[REVERSED_COLUMNS] = _forward(
            weights, x, lambda l, z: np.concatenate(columns(gelu(z), n)[::-1], axis=1)
        )
        known[ONE_MEMORY] = _forward(
            weights, x, lambda l, z: np.concatenate([columns(gelu(z), n)[-1]] * n, axis=1)
        )
        known[STACKED] = _forward(
            weights, x, lambda l, z: np.concatenate(columns(gelu(z), n)).reshape(z.shape)
        )
    return known


def _forward(weights: list, x: np.ndarray, output: Callable) -> np.ndarray:
    for l, weight in enumerate(weights):
        x = output(l, x @ weight)
    return x


def forward_saved_mistakes(own: list, y: np.ndarray) -> dict[str, list]:
    """Return a dict of mistakes in a forward pass. Each value is a wrong list of saved tensors.

    ``own`` is the right list of the rank. ``y`` is the output of the last layer.
    """
    known = {LATE_Z: [(x, gelu(z)) for x, z in own]}
    outputs = [*(x for x, _ in own[1:]), y]
    for last in range(1, len(own)):
        known[OVERWRITTEN.format(last)] = [
            (outputs[last] if 0 < l <= last else x, z) for l, (x, z) in enumerate(own)
        ]
    # This comes last, because an input that was overwritten may also be the output of its layer.
    known[SAVED_OUTPUT] = [(output, z) for output, (_, z) in zip(outputs, own)]
    return known


def every_nth(whole: np.ndarray, n: int, axis: int) -> list[dict[str, np.ndarray]]:
    """Return one dict of mistakes for each rank. The values are wrong shards.

    A right shard has 1/n of all columns (or rows), and they are consecutive. In one mistake, the
    shard has every n-th column. In another mistake, it has n consecutive columns. ``axis`` is 1 for
    columns and 0 for rows. On a single rank the dict is empty.
    """
    if n == 1:
        return [{}]
    cuts, known = np.moveaxis(whole, axis, 0), []
    for rank in range(n):
        known.append({EVERY_NTH: np.moveaxis(cuts[rank::n], 0, axis)})
        of_length = cuts[rank * n : (rank + 1) * n]
        if len(of_length) and len(of_length) * n != len(cuts):
            known[rank][PARTS_OF_LENGTH] = np.moveaxis(of_length, 0, axis)
    return known


def pair_outputs(
    a: np.ndarray, b: np.ndarray, x: np.ndarray, n: int
) -> list[dict[str, np.ndarray]]:
    """Return, for each rank, a dict of mistakes in a Megatron pair. The values are wrong outputs y.

    On a single rank the dict is empty.
    """
    if n == 1:
        return [{}]
    late = sum(gelus_before_the_sum(a, b, x, n))
    swapped = gelus_before_the_sum(a, b, n * x, n)
    of_all = {
        EARLY_GELU: late,
        NO_INNER_GELU: gelu(x @ a @ b),
        NO_OUTER_GELU: gelu(x @ a) @ b,
        G_DIVIDES: gelu(gelu(x @ a) @ b / n),
        TANH: gelu_by_tanh(gelu_by_tanh(x @ a) @ b),
    }
    own = gelus_before_the_sum(a, b, x, n)
    return [of_all | {SWAPPED: swapped[rank], NO_SUM: own[rank]} for rank in range(n)]


def gelus_before_the_sum(a: np.ndarray, b: np.ndarray, x: np.ndarray, n: int) -> list[np.ndarray]:
    """Return the output of each rank if gelu is applied to its partial output, not to the sum."""
    return [gelu(gelu(x @ column) @ row) for column, row in zip(columns(a, n), rows(b, n))]


def pair_mistakes(
    a: np.ndarray, b: np.ndarray, saved: list, grad_y: np.ndarray, n: int
) -> list[dict[str, list]]:
    """Return, for each rank, a dict of mistakes in a Megatron pair. The values are gradients.

    A value lists three gradients: those of the rank's column shard, of the rank's row shard, and of
    x. On a single rank the dict is empty.
    """
    if n == 1:
        return [{}]
    grad_x, (of_a, of_b) = backward([a, b], saved, grad_y)
    (x, z), (_, z2) = saved
    grad_z2 = grad_y * gelu_derivative(z2)
    known = []
    of_hidden = [grad_z2 @ row.T for row in rows(b, n)]
    slopes = [gelu_derivative(own) for own in columns(z, n)]
    before_gelu = _total([own * slope for own, slope in zip(of_hidden, slopes)])
    for rank in range(n):
        grad_z = of_hidden[rank] * slopes[rank]
        own = grad_z @ columns(a, n)[rank].T
        right = [columns(of_a, n)[rank], rows(of_b, n)[rank]]
        known.append(
            {
                OWN_PARTIAL: [*right, own],
                AGAIN: [n * right[0], n * right[1], n * grad_x],
                AGAIN_NOT_IN_F: [n * right[0], n * right[1], n * own],
                **{
                    name: [x.T @ late, right[1], late @ columns(a, n)[rank].T]
                    for name, late in (
                        (F_BEFORE_GELU, before_gelu),
                        (F_AFTER_GELU, _total(of_hidden) * slopes[rank]),
                    )
                },
            }
        )
    return known
