"""Computes the weights and losses that well-known mistakes in training give.

All values are in numpy and float64. Lists of results have one entry for each rank. In a dict of
mistakes, each key is the sentence that describes one mistake.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from grader.reference.by_rank import by_rank
from grader.reference.collective_mistakes import Order
from grader.reference.data_parallel import ADDED_AS_IT_LIES, averages_in_memory_order
from grader.reference.single_device import AdamW, loss_and_gradients

HIDES = ". AdamW's steps hardly depend on a constant factor, so the difference is small"
SUMMED = f"the gradients were summed over the ranks, not averaged{HIDES}"
DIVIDED = f"the gradients were divided by the number of ranks one time too many{HIDES}"
HALVED = f"the gradients are half of the right ones{HIDES}"
DOUBLED = f"the gradients are twice the right ones{HIDES}"
ALONE = "each rank trained only on its own shards. The gradients were never averaged over the ranks"
PLAIN = "there was no weight decay. Is the optimizer Adam instead of AdamW?"
DESCENT = "this is plain gradient descent. Use AdamW"
ADDED_UP = (
    "gradients add up from step to step. The gradients of a step must replace the previous ones"
)
FRESH = (
    "a new optimizer was made at every step, so its moments and its count of"
    " steps began again. Make one optimizer before the first step"
)
DEFAULT_RATE = "AdamW trained at its default learning rate, not at lr"
SCALED_RATE = (
    "the learning rate was multiplied by the number of ranks. Use lr as it is,"
    " because the gradients are averaged"
)
WEIGHTS_AVERAGED = (
    "each rank made its own step, and then the weights were averaged. Average"
    " the gradients before the step"
)
CUT_AGAIN = (
    "each rank trained on 1/n of its shard only. Do not call shard_batch here: the shards that"
    " train gets already are this rank's rows"
)
NO_STEP = (
    "no step changed the weights: these are the losses of the initial weights. Did the optimizer"
    " get the weights themselves, not copies? Do these weights have gradients?"
)
OWN_LOSS = (
    "these are this rank's own losses. The loss of the whole batch is their mean over the ranks"
)
DIVIDED_OWN_LOSS = (
    "these are this rank's own losses divided by the number of ranks. Sum these"
    " quotients over the ranks, too"
)
LATE_LOSS = "these are the losses after the updates. Return the losses before the updates"
STOPPED = "training ended after step {} of {}. Make one step for each shard"
KEPT = (
    "the caller's weights did not change. Did you call step()? Did each weight have its .grad?"
    " Did the optimizer get the caller's weights, not copies of them?"
)
STRIDED_KEPT = (
    "the weights that are not contiguous kept their values; the contiguous ones"
    " were trained. contiguous() makes a copy. The optimizer must hold the"
    " caller's own tensors"
)


@dataclass
class Descent:
    lr: float

    def step(self, weights: list, gradients: list) -> list:
        return [w - self.lr * g for w, g in zip(weights, gradients)]


# The weights of each rank at the end, and the losses as an array [rank, step]. The loss of a step
# is the loss before the step's update.
Trained = tuple[list, np.ndarray]


def train(
    weights: list,
    shards: list,
    optimizer: Callable,
    *,
    factor: float = 1.0,
    alone: bool = False,
    adds_up: bool = False,
    fresh: bool = False,
    averages_weights: bool = False,
    cuts_again: bool = False,
    updates: float = math.inf,
    orders: Sequence[Order] = (),
) -> Trained:
    """Train on all ranks, and return the weights and losses. Each keyword adds a mistake.

    ``shards[rank][step]`` is a rank's part of a step's batch. ``factor`` multiplies the gradients.
    If ``alone`` is True, each rank uses its own gradients, not the average. If ``adds_up`` is True,
    gradients add up from step to step. If ``fresh`` is True, each step makes a new optimizer. If
    ``averages_weights`` is True, each rank makes its own step, and then the weights are averaged.
    If ``cuts_again`` is True, rank r uses only part r of n of its rows in each step. Only the first
    ``updates`` steps update the weights; by default all steps do. If ``orders`` is given, gradients
    are averaged in memory order: see ``averages_in_memory_order``.
    """
    n, steps = len(shards), len(shards[0])
    if cuts_again:
        shards = [[np.split(rows, n)[rank] for rows in own] for rank, own in enumerate(shards)]
    own = [[np.asarray(w, np.float64) for w in weights] for _ in range(n)]
    optimizers = [optimizer() for _ in range(n)]
    before: list = [0.0] * n
    losses = np.zeros((n, steps))
    for step in range(steps):
        made = [loss_and_gradients(own[rank], shards[rank][step]) for rank in range(n)]
        losses[:, step] = [loss for loss, _ in made]
        gradients = [own_gradients for _, own_gradients in made]
        averages = averages_in_memory_order(gradients, orders or ["C"] * n)
        for rank in range(n):
            local = gradients[rank] if alone or averages_weights else averages[rank]
            used = [
                factor * g + (b if adds_up else 0.0)
                for g, b in zip(local, before[rank] or [0.0] * len(local))
            ]
            before[rank] = used
            if fresh:
                optimizers[rank] = optimizer()
            if step < updates:
                own[rank] = optimizers[rank].step(own[rank], used)
        if averages_weights:
            own = [[sum(w) / n for w in zip(*own)]] * n
    return own, losses


def training_mistakes(
    weights: list, shards: list, lr: float, orders: Sequence[Order] = ()
) -> tuple[list[dict], list[dict]]:
    """Return two lists of dicts of mistakes in training, with one dict for each rank.

    The values are the weights at the end in the first list, and the losses of all steps in the
    second. Each key is the sentence that describes one mistake. ``orders[rank]`` is the memory
    order of a rank's gradients: see ``averages_in_memory_order``.
    """
    n = len(shards)
    right, halved = lambda: AdamW(lr), {HALVED: 0.5, DOUBLED: 2.0}
    factors = {SUMMED: n, DIVIDED: 1 / n} | halved if n > 1 else halved
    made = {
        sentence: train(weights, shards, right, factor=factor)
        for sentence, factor in factors.items()
    }
    made |= {
        PLAIN: train(weights, shards, lambda: AdamW(lr, decay=0.0)),
        DESCENT: train(weights, shards, lambda: Descent(lr)),
        ADDED_UP: train(weights, shards, right, adds_up=True),
        FRESH: train(weights, shards, right, fresh=True),
        NO_STEP: train(weights, shards, right, updates=0),
    }
    steps = len(shards[0])
    made |= {
        STOPPED.format(k, steps): train(weights, shards, right, updates=k) for k in range(1, steps)
    }
    if lr != 1e-3:
        made[DEFAULT_RATE] = train(weights, shards, lambda: AdamW(1e-3))
    if n > 1:
        made |= {
            ALONE: train(weights, shards, right, alone=True),
            SCALED_RATE: train(weights, shards, lambda: AdamW(n * lr)),
            WEIGHTS_AVERAGED: train(weights, shards, right, averages_weights=True),
        }
    if n > 1 and not any(len(rows) % n for rows in shards[0]):
        made[CUT_AGAIN] = train(weights, shards, right, cuts_again=True)
    if len(set(orders)) > 1:
        made[ADDED_AS_IT_LIES] = train(weights, shards, right, orders=orders)
    ends = {KEPT if sentence == NO_STEP else sentence: own for sentence, (own, _) in made.items()}
    of_losses = [
        {sentence: losses.mean(axis=0) for sentence, (_, losses) in made.items()} for _ in range(n)
    ]
    _, losses = train(weights, shards, right)
    late = _after_the_updates(weights, shards, right)
    for rank in range(n):
        own = {OWN_LOSS: losses[rank], DIVIDED_OWN_LOSS: losses[rank] / n} if n > 1 else {}
        of_losses[rank] |= own | {LATE_LOSS: late}
    return by_rank(ends, n), of_losses


def _after_the_updates(weights: list, shards: list, optimizer: Callable) -> np.ndarray:
    """Return the loss of each step's batch, computed with the weights after that step."""
    after = []
    for step in range(len(shards[0])):
        reached, _ = train(weights, [own[: step + 1] for own in shards], optimizer)
        after.append(np.mean([loss_and_gradients(reached[0], own[step])[0] for own in shards]))
    return np.array(after)
