"""Judges schedules with several chunks per stage, or with backward passes cut in two halves.

An action is ``(kind, chunk, micro_batch)``; the kinds are those of ``handout/schedule_runner.py``.
A schedule is judged by what it achieves, so several different schedules can be right.
"""

from collections import Counter
from typing import Any

import numpy as np

from grader.reference import single_device
from grader.reference.counting import enumerated
from grader.reference.returned_lists import as_tuples
from grader.reference.schedules import numbers
from grader.wire.seeded_inputs import draw

Action = tuple[str, int, int]
Stages = list[list[Action]]  # the schedule of each stage

WHOLE = "F", "BW"  # the kinds of actions if backward passes are whole
SPLIT = "F", "B", "W"
ENDS = "BW", "W"  # after an action of one of these kinds, its activation is no longer needed


def as_actions(value: Any) -> list[Action] | None:
    """Return the schedule as a list of actions, or None if it is not such a list."""
    return as_tuples(value, str, int, int)


def complete(actions: list[Action], kinds: tuple[str, ...], v: int, m: int) -> str | None:
    """Return a sentence about an error in a schedule of v chunks and m micro-batches, or None.

    A schedule is wrong if an action is missing, repeated or unknown. It is also wrong if the
    actions of one chunk and micro-batch are not in the order of ``kinds``.
    """
    wanted = {(kind, chunk, i): 0 for kind in kinds for chunk in range(v) for i in range(m)}
    if strange := [action for action in actions if action not in wanted]:
        return (
            f"{strange[0]} is not a valid action: the kinds are {enumerated(kinds)},"
            f" {numbers('chunk', 'chunks', v)}, {numbers('micro-batch', 'micro-batches', m)}"
        )
    counted = wanted | Counter(actions)
    for action, times in counted.items():
        if times != 1:
            return f"{action} is there {times} times, not once" if times else f"{action} is missing"
    place = {action: number for number, action in enumerate(actions)}
    for kind, after in zip(kinds, kinds[1:]):
        for chunk in range(v):
            for i in range(m):
                if place[after, chunk, i] < place[kind, chunk, i]:
                    return f"{(after, chunk, i)} comes before {(kind, chunk, i)}"
    return None


def most_alive(actions: list[Action], ends: tuple[str, ...] = ENDS) -> tuple[int, Action]:
    """Return the largest number of activations alive, and the action that first reaches it.

    The F of a chunk and micro-batch makes one activation. This activation is alive until an action
    whose kind is in ``ends`` runs for the same chunk and micro-batch.
    """
    alive, most, after = 0, 0, actions[0]
    for action in actions:
        alive += (action[0] == "F") - (action[0] in ends)
        if alive > most:
            most, after = alive, action
    return most, after


def makespan(stages: Stages, times: dict[str, float]) -> float | str:
    """Return the time at which all stages have ended, or a sentence if stages wait for ever.

    ``times[kind]`` is the time that an action of this kind takes. An action begins as soon as its
    stage and its inputs are ready. Messages take no time.
    """
    timed = spans(stages, times)
    waits = [
        _wait(stages, stage, len(ended))
        for stage, (own, ended) in enumerate(zip(stages, timed))
        if len(ended) < len(own)
    ]
    if waits:
        return f"no stage can go on: {'; '.join(waits)}."
    return max(own[-1][2] for own in timed)


def _wait(stages: Stages, stage: int, number: int) -> str:
    """Return words for a stage's action that waits, and for the neighbour's action that it needs.

    The neighbour has the previous part of the model (for F) or the next part (for B and BW).
    """
    kind, chunk, i = action = stages[stage][number]
    part = chunk * len(stages) + stage + (-1 if kind == "F" else 1)
    needed = (kind, part // len(stages), i)
    return f"stage {stage} waits at {action}, which needs {needed} of stage {part % len(stages)}"


def spans(stages: Stages, times: dict[str, float]) -> list[list[tuple[Action, float, float]]]:
    """Return, for each stage, its actions with their start and end times.

    The actions that a stage can never begin are left out.
    """
    n = len(stages)
    parts = n * (1 + max(chunk for own in stages for _, chunk, _ in own))
    # (kind, part, micro-batch) → end of the action. A BW is recorded as B
    ended: dict[tuple[str, int, int], float] = {}
    found: list[list[tuple[Action, float, float]]] = [[] for _ in stages]
    moved = True
    while moved:
        moved = False
        for stage, own in enumerate(stages):
            while len(found[stage]) < len(own):
                kind, chunk, i = action = own[len(found[stage])]
                part = chunk * n + stage
                needed = _needed(kind, part, i, parts)
                if not all(one in ended for one in needed):
                    break
                free = found[stage][-1][2] if found[stage] else 0.0
                start = max([free, *(ended[one] for one in needed)])
                end = start + times[kind]
                ended[kind[0], part, i] = end
                found[stage].append((action, start, end))
                moved = True
    return found


def _needed(kind: str, part: int, i: int, parts: int) -> list[tuple[str, int, int]]:
    """Return the actions whose results an action needs. Both B and BW are named "B" here."""
    if kind == "F":
        return [("F", part - 1, i)] if part > 0 else []
    if kind == "W":
        return [("B", part, i)]
    return [("F", part, i)] + ([("B", part + 1, i)] if part < parts - 1 else [])


# ——— what the schedules of Problems 8.1 and 8.3 must achieve


def layers_of_chunks(num_layers: int, stage: int, n: int, v: int) -> list[list[int]]:
    each = num_layers // (n * v)
    return [list(range(part * each, (part + 1) * each)) for part in range(stage, n * v, n)]


def bubble_mistakes(cases: list[tuple[int, int, int]]) -> dict[str, list[np.ndarray]]:
    """Return a dict of mistakes. Each value lists the bubble that a mistake gives in each case.

    A key is the sentence that describes the mistake. A case is (n, v, m).
    """
    return {
        "this is the idle time divided by the ideal time. Divide it by the total time": [
            np.array((n - 1) / (v * m)) for n, v, m in cases
        ],
        "this is the bubble for one chunk per stage. With v chunks it is smaller": [
            np.array((n - 1) / (m + n - 1)) for n, v, m in cases
        ],
        "this is the bubble of 1F1B divided by v. With v chunks, the total time is shorter, too": [
            np.array((n - 1) / (m + n - 1) / v) for n, v, m in cases
        ],
    }


def interleaved_end(n: int, v: int, m: int, forward: float, backward: float) -> float:
    """Return the time at which interleaved schedules end [Narayanan et al., 2021, section 2.2]."""
    return (v * m + n - 1) * (forward + backward)


def interleaved_alive(stage: int, n: int, v: int) -> int:
    return n - stage if v == 1 else 2 * (n - stage - 1) + (v - 1) * n + 1


def zero_bubble_end(n: int, m: int, f: float, b: float, w: float) -> float:
    """Return the latest time at which ZB-H1 schedules may end.

    ``f``, ``b`` and ``w`` are the times of F, B and W. The source, [Qi et al., 2024], section 2.3,
    covers only the case m ≥ n, w ≤ f, w ≤ b. In this case a stage is idle for (n − 1)(f + b − w).
    """
    return m * (f + b + w) + (n - 1) * (f + b) - (min(n, m) - 1) * min(f, b, w)


# ——— values of Problem 8.2


def chunk_backward(
    weights: list, saved: list, grad_y: np.ndarray
) -> tuple[np.ndarray, list, list[np.ndarray]]:
    """Return (grad_x, kept, gradients) of a chunk.

    ``grad_x`` is the gradient of the chunk's input. ``kept`` has the pair (x, grad_z) of each
    layer, which the action W needs. ``gradients`` are the gradients of the weights.
    """
    grad_x, kept = single_device.input_backward(weights, saved, grad_y)
    return grad_x, kept, [np.asarray(x, np.float64).T @ grad_z for x, grad_z in kept]


UNTRANSPOSED = "grad_z was multiplied by W. Multiply it by the transpose of W"
NO_GELU = "the derivative of gelu is missing: grad_z = grad_y ⊙ gelu′(z)"
ON_X = "gelu′ was computed from x. Compute it from z"
NOT_PASSED_ON = (
    "every layer got the gradient of the chunk's output. The grad_x of a layer is the grad_y of the"
    " layer before it"
)
OTHER_WAY = (
    "the backward pass went from the first layer to the last. It must begin with the last layer"
)


def input_mistakes(weights: list, saved: list, grad_y: np.ndarray) -> dict[str, np.ndarray]:
    """Return a dict of mistakes. The values are wrong gradients of the chunk's input.

    A key is the sentence that describes the mistake.
    """

    def gradient(ws: list, own: list, derivative: bool = True, at: int = 1) -> np.ndarray:
        grad = np.asarray(grad_y, np.float64)
        for weight, pair in zip(ws, own):
            if derivative:
                grad = grad * single_device.gelu_derivative(np.asarray(pair[at], np.float64))
            grad = grad @ np.asarray(weight, np.float64)
        return grad

    back, own = [weight.T for weight in reversed(weights)], saved[::-1]
    found = {
        UNTRANSPOSED: gradient(list(reversed(weights)), own),
        NO_GELU: gradient(back, own, derivative=False),
        ON_X: gradient(back, own, at=0),
    }
    if len(weights) > 1:
        first, z = np.asarray(weights[0], np.float64), np.asarray(saved[0][1], np.float64)
        found[NOT_PASSED_ON] = (
            np.asarray(grad_y, np.float64) * single_device.gelu_derivative(z)
        ) @ first.T
        found[OTHER_WAY] = gradient([weight.T for weight in weights], list(saved))
    return found


def kept_mistakes(weights: list, saved: list, grad_y: np.ndarray, kept: list) -> dict[str, list]:
    """Return a dict of mistakes in ``backward_input``. The values are wrong versions of ``kept``.

    A key is the sentence that describes the mistake. ``kept`` is the list that ``backward_input``
    returns, and that ``backward_weights`` needs.
    """
    after = [np.asarray(grad_y, np.float64)]
    for weight, (_, grad_z) in zip(reversed(weights[1:]), reversed(kept[1:])):
        after.insert(0, grad_z @ np.asarray(weight, np.float64).T)
    found = {
        "this is the gradient of the layer's output, not that of z": [
            (x, grad) for (x, _), grad in zip(kept, after)
        ],
        "this is z from saved. Return its gradient, grad_z, instead": list(saved),
        "this is z. The pair is (x, grad_z)": [
            (z, grad_z) for (_, z), (_, grad_z) in zip(saved, kept)
        ],
        "x and grad_z are swapped": [(grad_z, x) for x, grad_z in kept],
    }
    if len(kept) > 1:
        found["the layers are in reverse order. Put the first layer first"] = kept[::-1]
    return found


UNCHANGED = (
    "the check changed grad_z in place between B and W, but these are the gradients without this"
    " change. Multiply in backward_weights, with the tensors in kept"
)


def changes(
    rng: np.random.Generator, stages: Stages, cut: list, inputs: list, m: int
) -> tuple[list[list[int]], list[np.ndarray]]:
    """Draw a seed for each W action. Return the seeds, and their effect on the gradients.

    Before a W, the driver ``chunked`` changes grad_z, as the seed of this W says. The first list
    has the seeds of each stage, in the order of its schedule. The second list has one array for
    each layer: how much the gradient of its weight changes because grad_z changed.
    ``cut[stage][chunk]`` has the layers of a chunk. ``inputs[layer]`` is the input of a layer.
    """
    seeds: list[list[int]] = []
    gains = [np.zeros((x.shape[1], x.shape[1])) for x in inputs]
    for own, layers_of in zip(stages, cut):
        seeds.append([])
        for _, chunk, i in [action for action in own if action[0] == "W"]:
            seeds[-1].append(int(rng.integers(1 << 40)))
            own_inputs = [np.split(inputs[layer], m)[i] for layer in layers_of[chunk]]
            for layer, gain in zip(layers_of[chunk], gains_of(seeds[-1][-1], own_inputs, m)):
                gains[layer] += gain
    return seeds, gains


def gains_of(seed: int, inputs: list, m: int = 1) -> list[np.ndarray]:
    """Return, for each layer, how much the gradient of its weight changes if grad_z changes.

    The change of grad_z happens before one W, and is drawn from ``seed``. ``inputs`` has the x of
    each layer of the chunk. Each x has the rows of one of m micro-batches.
    """
    found = []
    for layer, x in enumerate(inputs):
        change = draw(seed, layer, x.size).reshape(x.shape) - 0.5
        found.append(np.asarray(x, np.float64).T @ change / (m * x.size))
    return found


def weight_mistakes(kept: list) -> dict[str, list]:
    right = [np.asarray(x, np.float64).T @ grad_z for x, grad_z in kept]
    found = {
        "this is the transpose. The gradient is xᵀ @ grad_z": [gradient.T for gradient in right],
        (
            "this is divided by the number of rows. Do not divide: the gradient of the loss already"
            " contains this division"
        ): [gradient / len(x) for gradient, (x, _) in zip(right, kept)],
    }
    if len(right) > 1:
        found["the layers are in reverse order. Put the first layer first"] = right[::-1]
    return found
