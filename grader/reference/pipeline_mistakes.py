"""Computes the tensors that a stage saves, and the results of known mistakes in pipelines.

All values are numpy arrays in float64, computed with the functions of ``single_device``. Lists of
results have one entry for each stage. In a dict of mistakes, each key is the sentence that
describes one mistake.
"""

from collections.abc import Sequence

import numpy as np

from grader.reference.single_device import backward, gelu, gelu_derivative
from grader.reference.tensor_parallel import LATE_Z, NO_DERIVATIVE, SAVED_OUTPUT

OWN_MEANS = (
    "each micro-batch's loss was the mean over its own rows, and nothing was"
    " divided by the number of micro-batches. The loss is the mean over the"
    " whole batch"
)
DIVIDED_TWICE = (
    "this is divided by the number of micro-batches one time too many. The loss is already"
    " a mean over the whole batch"
)
LAST_ONLY = (
    "this is only the last micro-batch's gradient. Gradients of micro-batches"
    " must add up, not overwrite each other"
)
LAST_MEAN_ONLY = (
    f"{LAST_ONLY}. Also, the last micro-batch's loss was the mean over its own rows, not over the"
    " whole batch"
)
FIRST_ONLY = (
    "this is only the first micro-batch's gradient. Add the gradients of the other micro-batches"
)
CROSSED = (
    "the gradient of one micro-batch was combined with the activations of"
    " another. Do the stages take the micro-batches in different orders?"
)
TWICE = "these are twice the right gradients. Is each micro-batch's gradient added only once?"
TAKEN = (
    "a backward pass used the {} activations that were not used yet, instead of those of its own"
    " micro-batch. This is right only if the backward passes run in the {} of the forward passes"
)
REVERSED = "the micro-batches are in reverse order"
INTERLEAVED = "micro-batch i holds every m-th row (i, i + m, …). Take consecutive rows"
ONE_BUFFER = (
    "every micro-batch holds the values that were received for the last micro-batch. Do all"
    " micro-batches share one buffer?"
)
FORWARD_ORDER = (
    "the backward pass went through a stage's layers from the first to the last."
    " It must begin with the last layer"
)
REVERSED_LAYERS = (
    "these are the right gradients in reverse order."
    " The list must begin with the stage's first layer"
)
UNCHAINED = (
    "every layer of a stage got the gradient of the stage's output. Give each layer the grad_x of"
    " the layer after it"
)
SAME_TENSOR = (
    "every layer has the sum of the gradients of all layers of the stage. [tensor] * k is a list of"
    " k times the same tensor"
)
OF_ONE_OUTPUT = (
    "every micro-batch began its backward pass with the gradient of the {} micro-batch's output"
)
ONLY_LAST = "this is only the output of the last micro-batch. Join the outputs of all of them"
NEXT_ROWS = "micro-batch i begins at row i. It must begin at row i·B/m"
UNTRANSPOSED = "a gradient was multiplied by W. Multiply it by the transpose of W"
X_FOR_Z = "x and z are swapped"
NO_GELU = "gelu is missing in every layer. layer_forward returns (y, z), in this order"
SENT_Z = "z was sent to the next stage. Send y = gelu(z)"
ONE_LIST = (
    "every micro-batch has the pairs of all micro-batches. [[]] * m is one list, m times: make a"
    " new list for each micro-batch"
)
OTHER_END = (
    "the gradient of micro-batch i was combined with the saved tensors of micro-batch m − 1 − i."
    " Use both in the same order"
)
BEGUN = (
    "the last stage began its backward pass with the gradient {}. The gradient of the mean of y² is"
    " 2y / (B·D)"
)


def begun(start: str, stages: Sequence) -> str:
    """Return a sentence about a last stage that began its backward pass with a wrong gradient.

    ``start`` is this wrong gradient of y, in words. "y / (B·D)" is half of the right gradient. With
    two stages, this half has a second likely cause, and the sentence names both causes.
    """
    is_half = start == "y / (B·D)" and len(stages) == 2
    also = ". Or did your code divide this gradient by 2, the number of ranks?" if is_half else ""
    return BEGUN.format(start) + also


def micro_batches(saved: list, layers: range, m: int) -> list[list[tuple]]:
    """Return the list that a stage saves. Its entry [i][l] is (x, z) of micro-batch i, layer l."""
    halves = [(np.split(saved[l][0], m), np.split(saved[l][1], m)) for l in layers]
    return [[(x[i], z[i]) for x, z in halves] for i in range(m)]


def output_mistakes(y: np.ndarray, m: int) -> dict[str, np.ndarray]:
    """Return a dict of mistakes. The values are outputs with wrong rows."""
    parts, rows = np.split(y, m), len(y) // m
    known = {REVERSED: np.concatenate(parts[::-1]), ONLY_LAST: parts[-1]} if m > 1 else {}
    if 1 < m < len(y):
        known[INTERLEAVED] = _interleaved(y, m)
        known[NEXT_ROWS] = np.concatenate([y[i : i + rows] for i in range(m)])
    return known


def forward_mistakes(weights: list, x: np.ndarray, cut: list[range]) -> dict[str, np.ndarray]:
    """Return a dict of mistakes in the forward pass. The values are wrong outputs."""
    layers_without_gelu = {
        NO_GELU: list(range(len(weights))),
        SENT_Z: [layers[-1] for layers in cut[:-1]],
    }
    known = {}
    for name, without in layers_without_gelu.items():
        y = x
        for l, weight in enumerate(weights):
            z = y @ weight
            y = z if l in without else gelu(z)
        known[name] = y
    return known


def saved_mistakes(saved: list, cut: list[range], m: int) -> list[dict[str, list]]:
    """Return one dict of mistakes for each stage. The values are wrong lists of saved tensors."""
    known = []
    for stage, layers in enumerate(cut):
        own = micro_batches(saved, layers, m)
        mistakes = {
            LATE_Z: [[(x, gelu(z)) for x, z in part] for part in own],
            SAVED_OUTPUT: [[(gelu(z), z) for _, z in part] for part in own],
        }
        if m > 1:
            mistakes[REVERSED] = own[::-1]
            mistakes[ONE_LIST] = [[pair for part in own for pair in part]] * m
        if 1 < m < len(saved[0][0]):
            mistakes[INTERLEAVED] = micro_batches(
                [[_interleaved(a, m) for a in pair] for pair in saved], layers, m
            )
        if stage > 0 and m > 1:
            mistakes[ONE_BUFFER] = [[(own[-1][0][0], part[0][1]), *part[1:]] for part in own]
        known.append(mistakes)
    return known


def _interleaved(rows: np.ndarray, m: int) -> np.ndarray:
    return np.concatenate([rows[i::m] for i in range(m)])


def pipeline_mistakes(
    weights: list, saved: list, y: np.ndarray, cut: list[range], m: int
) -> list[dict[str, list]]:
    """Return one dict of mistakes for each stage. The values are gradients of its weights."""
    grad_y = 2 * y / y.size
    parts = micro_batches(saved, range(len(weights)), m)
    each = [backward(weights, part, grad)[1] for part, grad in zip(parts, np.split(grad_y, m))]
    whole = [sum(gradients) for gradients in zip(*each)]
    crossed = _crossed(weights, parts, np.split(grad_y, m), cut)
    known = {
        OWN_MEANS: [m * g for g in whole],
        DIVIDED_TWICE: [g / m for g in whole],
        TWICE: [2 * g for g in whole],
        LAST_ONLY: each[-1],
        LAST_MEAN_ONLY: [m * g for g in each[-1]],
        FIRST_ONLY: each[0],
        CROSSED: crossed,
        UNTRANSPOSED: _mistaken(weights, saved, grad_y, cut, untransposed=True),
        NO_DERIVATIVE: _mistaken(weights, saved, grad_y, cut, derivative=np.ones_like),
        X_FOR_Z: _mistaken(weights, [(z, x) for x, z in saved], grad_y, cut),
        FORWARD_ORDER: _mistaken(weights, saved, grad_y, cut, forward=True),
        UNCHAINED: _mistaken(weights, saved, grad_y, cut, chained=False),
        SAME_TENSOR: [sum(whole[k] for k in layers) for layers in cut for _ in layers],
    }
    if m > 1:
        of_ends = [backward(weights, p, g)[1] for p, g in zip(parts[::-1], np.split(grad_y, m))]
        known[OTHER_END] = [sum(gradients) for gradients in zip(*of_ends)]
        for which, i in (("last", -1), ("first", 0)):
            start = np.split(grad_y, m)[i]
            of_parts = [backward(weights, part, start)[1] for part in parts]
            known[OF_ONE_OUTPUT.format(which)] = [sum(own) for own in zip(*of_parts)]
    # The last stage begins with a wrong gradient: the right gradient 2y / (B·D) times the factor.
    starts = {
        "y": y.size / 2,
        "2y": y.size,
        "y / (B·D)": 1 / 2,
        "2y / B": y.shape[1],
        "2y / D": len(y),
    }
    known |= {begun(start, cut): [factor * g for g in whole] for start, factor in starts.items()}
    of_stages = [
        {name: [values[l] for l in layers] for name, values in known.items()} for layers in cut
    ]
    return [
        own | {REVERSED_LAYERS: [whole[l] for l in reversed(layers)]}
        for own, layers in zip(of_stages, cut)
    ]


def _mistaken(
    weights: list,
    saved: list,
    grad: np.ndarray,
    cut: list,
    derivative=gelu_derivative,
    untransposed=False,
    forward=False,
    chained=True,
) -> list:
    """Return the gradients of all layers that a backward pass with a mistake gives.

    ``derivative`` is used in place of gelu's derivative. If ``untransposed`` is True, W is used in
    place of the transpose of W. If ``forward`` is True, a stage's backward pass runs from the
    stage's first layer to the stage's last layer. If ``chained`` is False, each layer of a stage
    gets the gradient of the stage's output.
    """
    gradients: list = [None] * len(weights)
    for layers in reversed(cut):
        of_stage = grad
        for l in layers if forward else reversed(layers):
            x, z = saved[l]
            grad_z = (grad if chained else of_stage) * derivative(z)
            gradients[l] = x.T @ grad_z
            grad = grad_z @ (weights[l] if untransposed else weights[l].T)
    return gradients


def _crossed(weights: list, parts: list, incoming: list, cut: list[range]) -> list:
    """Return the gradients of all layers if the stages take micro-batches in different orders.

    On every stage, the gradients arrive in the order of the micro-batches. The last stage uses its
    saved activations in the same order. All other stages use their saved activations in reverse
    order.
    """
    gradients: list = [None] * len(weights)
    for layers in reversed(cut):
        order = parts if layers is cut[-1] else parts[::-1]
        outgoing = []
        for part, grad in zip(order, incoming):
            grad, own = backward([weights[l] for l in layers], [part[l] for l in layers], grad)
            outgoing.append(grad)
            for l, gradient in zip(layers, own):
                gradients[l] = gradient if gradients[l] is None else gradients[l] + gradient
        incoming = outgoing
    return gradients


def activation_mistakes(
    weights: list, saved: list, y: np.ndarray, cut: list[range], schedules: list[list[tuple]]
) -> list[dict[str, list]]:
    """Return one dict of mistakes for each stage. The values are gradients of its weights.

    There are two mistakes. In the first, each backward pass uses the oldest activations that are
    alive. In the second, each backward pass uses the newest activations. A right pass uses the
    activations of its own micro-batch. ``schedules[stage]`` is the list of a stage's actions.
    """
    known: list[dict] = [{} for _ in cut]
    m = len(schedules[0]) // 2
    parts = micro_batches(saved, range(len(weights)), m)
    for index, sentence in (
        (0, TAKEN.format("oldest", "order")),
        (-1, TAKEN.format("newest", "reverse order")),
    ):
        incoming = dict(enumerate(np.split(2 * y / y.size, m)))
        for stage in reversed(range(len(cut))):
            alive, layers, gradients = [], cut[stage], []
            for kind, i in schedules[stage]:
                if kind == "forward":
                    alive.append(parts[i])
                    continue
                taken = alive.pop(index)
                incoming[i], own = backward(
                    [weights[l] for l in layers], [taken[l] for l in layers], incoming[i]
                )
                gradients.append(own)
            known[stage][sentence] = [sum(of_layer) for of_layer in zip(*gradients)]
    return known
