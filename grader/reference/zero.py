"""Computes the weights and moments of ZeRO-1, and the results of well-known mistakes.

Each rank updates its own flat shard. ``rates[rank][step]`` is the learning rate of a rank in a
step. All values are in numpy and float64. In a dict of mistakes, each key is the sentence that
describes one mistake.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from grader.reference.sharded import OTHER_RANK, SUMMED_SHARDS, shards, unflat
from grader.reference.single_device import AdamW
from grader.reference.training_mistakes import (
    ADDED_UP,
    DEFAULT_RATE,
    DESCENT,
    DIVIDED,
    FRESH,
    PLAIN,
    SUMMED,
    WEIGHTS_AVERAGED,
    Descent,
)

NEW_TENSORS = (
    "the caller's tensors kept their values. Write the new values into them, for example by copy_"
)
OWN_ONLY = "only this rank's shard was updated. All-gather the shards after the step"
NEVER_WRITTEN = (
    "the caller's tensors never change. Does the optimizer make a step, and are the gathered"
    " weights written into these tensors, for example by copy_?"
)
NOT_COPIED = (
    "the optimizer has made its steps, but the caller's tensors never change. Does the all-gather"
    " send the tensor that the optimizer updates (and not a new flat shard of the weights)? Is the"
    " result written into the caller's tensors, for example by copy_?"
)
NO_STEP_MADE = (
    "the optimizer has no state, so it made no step. Does step call self.optimizer.step(), and does"
    " the optimizer's own tensor have a grad? nn.Parameter(shard) is another tensor than shard"
)
BEFORE_THE_STEP = (
    "after each step, these are the weights from before this step. Gather the shards after the"
    " update, and write them into the caller's tensors, for example by copy_"
)
NOT_SCATTERED = (
    "each rank updated its shard with its own gradients only. Reduce-scatter the gradients of all"
    " ranks"
)
OWN_DIVIDED = (
    "each rank updated its shard with its own gradients, divided by the number of ranks."
    " Reduce-scatter the gradients of all ranks"
)
ALONE_ON_EACH = "each rank trained only with its own gradients. Average them over the ranks"
FIRST_RATE = (
    "every step was made at the learning rate that __init__ got. A step must use the current"
    " settings of self.optimizer"
)
OWN_RATE = (
    "all entries were updated with this rank's learning rate, so this rank has also updated the"
    " shards of the other ranks. Update only this rank's shard, and get the other shards by an"
    " all-gather"
)
OR_OWN_GRADIENTS = "Or did this rank use its own gradients, and not the averages?"
OTHER_OBJECT = (
    "the weights of the first object do not change any more. Does the class, or a global variable,"
    " hold what each ZeroAdamW object must hold itself? Then a second object overwrites it"
)
STOPPED = "only the first {} steps changed the weights. Every call of step makes a step"
ONLY_RATE = (
    "only the learning rate was read from self.optimizer. Each step must use all current settings"
    " of self.optimizer: lr, betas, eps and weight_decay"
)
OLD_STATE = (
    "the step used the moments that AdamW had before the check replaced them in"
    " self.optimizer.state. Keep the moments of a shard only there"
)
OLD_STATE_OF_OTHERS = (
    "the shards of the other ranks were updated with moments that their owners no longer have. A"
    " rank must not keep the state of other shards: update only this rank's shard, and get the"
    " other shards by an all-gather"
)
ALL_UPDATED = (
    "this rank updated all weights, not only its shard: its optimizer has a state for all of them."
    " Give the optimizer one tensor, this rank's flat shard, and get the other shards by an"
    " all-gather"
)

Rates = Sequence[Sequence[float]]  # [rank][step]


def averages(gradients: list) -> list:
    """Return the averages of ``gradients[rank][step][tensor]`` over the ranks: [step][tensor]."""
    n = len(gradients)
    return [
        [
            np.asarray(sum(np.asarray(g, np.float64) for g in of_ranks) / n)
            for of_ranks in zip(*step)
        ]
        for step in zip(*gradients)
    ]


def trained(
    weights: list,
    steps: list,
    rates: Rates,
    optimizer: Callable[[float], Any] = AdamW,
    change: Callable[[Any, int, int], None] = lambda made, rank, step: None,
) -> tuple[list, list]:
    """Return the weights after every step, and for each rank the two moments of its shard.

    ``steps[step]`` has the gradients of all weights, which are the same on all ranks.
    ``optimizer`` makes an optimizer from a learning rate. If this optimizer is not AdamW, each rank
    has () in place of the moments. Before each step, ``change`` may change a rank's optimizer.
    """
    n = len(rates)
    of_steps = [shards(step, n) for step in steps]
    pieces = shards([np.asarray(w, np.float64) for w in weights], n)
    after: list[list] = [[] for _ in steps]
    moments = []
    for rank, own in enumerate(rates):
        made, values = optimizer(own[0]), [pieces[rank]]
        for k, gradients in enumerate(of_steps):
            made.lr = own[k]
            change(made, rank, k)
            values = made.step(values, [gradients[rank]])
            after[k].append(values[0])
        moments.append(made.moments[0] if isinstance(made, AdamW) else ())
    return [unflat(np.concatenate(of_step), weights) for of_step in after], moments


def zero_mistakes(weights: list, gradients: list, rates: Rates) -> list[dict[str, list]]:
    """Return one dict of mistakes for each rank. The values are the weights after every step.

    ``gradients[rank][step]`` are a rank's own gradients.
    """
    n, average = len(gradients), averages(gradients)

    def result(steps: list, rates: Rates = rates, optimizer: Callable = AdamW) -> list:
        return trained(weights, steps, rates, optimizer)[0]

    made = {
        PLAIN: result(average, optimizer=lambda lr: AdamW(lr, decay=0.0)),
        DESCENT: result(average, optimizer=Descent),
        FRESH: _with_fresh_optimizers(weights, average, rates),
        ADDED_UP: result(_added_up(average)),
    }
    if rates[0][0] != 1e-3:
        made[DEFAULT_RATE] = result(average, [[1e-3, *own[1:]] for own in rates])
    if len(average) > 1:
        made[FIRST_RATE] = result(average, [[own[0]] * len(average) for own in rates])
    if n == 1:
        return [made]
    made[SUMMED] = result([[n * g for g in step] for step in average])
    made[WEIGHTS_AVERAGED] = _with_averaged_weights(weights, gradients, rates)
    right = result(average)
    if len(average) > 1:
        made[NEVER_WRITTEN] = [[np.asarray(w, np.float64) for w in weights]] * len(average)
    made[BEFORE_THE_STEP] = [[np.asarray(w, np.float64) for w in weights], *right[:-1]]
    made[NOT_SCATTERED] = _gathered([result(own) for own in gradients], n)
    made[DIVIDED] = result(_divided(average, n))
    found = []
    for rank in range(n):
        own_rate = [rates[rank]] * n
        known = {
            OWN_ONLY: [own_updated(weights, step, n, rank) for step in right],
            ALONE_ON_EACH: result(gradients[rank], own_rate),
        }
        if len(average) > 1:  # all ranks make the first step at the same rate
            known[OWN_RATE] = result(average, own_rate)
            if _are_close(known[OWN_RATE], known[ALONE_ON_EACH]):
                # The gradients are multiples of each other, and AdamW hardly depends on a factor.
                known[f"{OWN_RATE}. {OR_OWN_GRADIENTS}"] = known.pop(OWN_RATE)
                del known[ALONE_ON_EACH]
        found.append(made | known)
    return found


def optimizer_mistakes(optimizer: Any, weights: list, n: int, after: Any) -> dict[str, Any]:
    """Return a dict with a mistake that a rank's optimizer shows.

    ``optimizer`` describes the rank's optimizer, and ``after`` are the weights that the rank has.
    The mistake is ``NO_STEP_MADE`` if the optimizer has parameters, but no state. It is
    ``NOT_COPIED`` if the optimizer has made steps, but the weights have not changed. It is
    ``ALL_UPDATED`` if the state has as many entries as all weights, and more than a shard.
    Otherwise the dict is empty.
    """
    states = optimizer.get("state") if isinstance(optimizer, dict) else None
    kept = list(states.values()) if isinstance(states, dict) else []
    if kept and all(state == {} for state in kept):
        return {NO_STEP_MADE: after}
    moments = [state.get("exp_avg") for state in kept if isinstance(state, dict)]
    if any(isinstance(m, np.ndarray) and m.any() for m in moments) and _are_all(after, weights):
        return {NOT_COPIED: after}
    entries = sum(moment.size for moment in moments if isinstance(moment, np.ndarray))
    whole = sum(np.size(weight) for weight in weights)
    if entries < whole or entries <= math.ceil(whole / n):
        return {}
    return {ALL_UPDATED: after}


def _are_all(after: Any, weights: list) -> bool:
    """Return whether the weights after every step equal the weights at the beginning."""
    return isinstance(after, (list, tuple)) and all(
        isinstance(step, (list, tuple))
        and len(step) == len(weights)
        and all(np.array_equal(got, weight) for got, weight in zip(step, weights))
        for step in after
    )


def _are_close(steps: list, others: list) -> bool:
    """Return whether two lists of weights after every step are the same up to AdamW's epsilon."""
    pairs = ((a, b) for step, other in zip(steps, others) for a, b in zip(step, other))
    return all(np.allclose(a, b, rtol=1e-5) for a, b in pairs)


def _divided(steps: list, n: int) -> list:
    return [[g / n for g in step] for step in steps]


def _added_up(steps: list) -> list:
    """Return, for each step, the sum of its gradients and the gradients of all earlier steps."""
    return [[sum(of_tensor) for of_tensor in zip(*steps[: k + 1])] for k in range(len(steps))]


def _with_fresh_optimizers(weights: list, average: list, rates: Rates) -> list:
    after: list = []
    for k, step in enumerate(average):
        of_step = [own[k : k + 1] for own in rates]
        after += trained(after[-1] if after else weights, [step], of_step)[0]
    return after


def _with_averaged_weights(weights: list, gradients: list, rates: Rates) -> list:
    """Return the weights after every step if each rank makes its own step.

    After each step, the weights are averaged over the ranks.
    """
    n, after = len(gradients), [[np.asarray(w, np.float64) for w in weights]]
    optimizers = [AdamW(own[0]) for own in rates]
    for k, step in enumerate(zip(*gradients)):
        for made, rate in zip(optimizers, rates):
            made.lr = rate[k]
        own = [made.step(after[-1], of_rank) for made, of_rank in zip(optimizers, step)]
        after.append([sum(of_tensor) / n for of_tensor in zip(*own)])
    return after[1:]


def own_updated(weights: list, moved: list, n: int, rank: int) -> list:
    """Return the weights with one rank's shard updated, and the other shards unchanged."""
    pieces = shards([np.asarray(w, np.float64) for w in weights], n)
    pieces[rank] = shards(moved, n)[rank]
    return unflat(np.concatenate(pieces), weights)


def _gathered(alone: list, n: int) -> list:
    """Return the weights after every step if each rank uses only its own gradients.

    ``alone[rank][step]`` has the weights that a rank would compute alone. In the result, shard r
    comes from the weights of rank r.
    """
    return [
        unflat(np.concatenate([shards(own, n)[r] for r, own in enumerate(step)]), step[0])
        for step in zip(*alone)
    ]


def state_mistakes(weights: list, gradients: list, rates: Rates, moment: int) -> list[dict]:
    """Return one dict of mistakes for each rank. The values are the rank's shard of a moment.

    ``moment`` is 0 for the mean of the gradients, and 1 for the mean of their squares.
    """
    n, average = len(gradients), averages(gradients)
    if n == 1:
        return [{}]
    summed = [[n * g for g in step] for step in average]
    known = {
        SUMMED_SHARDS: summed,
        "the gradients were divided by the number of ranks one time too many": _divided(average, n),
    }

    def shards_of(steps: list) -> list[np.ndarray]:
        return [moments[moment] for moments in trained(weights, steps, rates)[1]]

    of_ranks = [shards_of(own) for own in gradients]
    of_divided = [shards_of(_divided(own, n)) for own in gradients]
    right = shards_of(average)
    return [
        {name: shards_of(steps)[rank] for name, steps in known.items()}
        | {NOT_SCATTERED: of_ranks[rank][rank], OWN_DIVIDED: of_divided[rank][rank]}
        | {OTHER_RANK.format(other): right[other] for other in range(n) if other != rank}
        for rank in range(n)
    ]
