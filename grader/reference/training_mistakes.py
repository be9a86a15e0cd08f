"""Computes what well-known mistakes in training give: weights, gradients and losses.

All values are in numpy and float64. Lists of results have one entry for each rank. In a dict of
mistakes, each key is the sentence that describes one mistake.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grader.reference.single_device import AdamW, loss_and_gradients

HIDES = ". AdamW's steps hardly depend on a constant factor, so the difference is small"
SUMMED = f"the gradients were summed over the ranks, not averaged{HIDES}"
DIVIDED = f"the gradients were divided by the number of ranks one time too many{HIDES}"
HALVED = f"the gradients are half of the right ones{HIDES}"
DOUBLED = f"the gradients are twice the right ones{HIDES}"
ALONE = "each rank trained only on its own shards. The gradients were never averaged over the ranks"
PLAIN = "there was no weight decay. Is it Adam instead of AdamW?"
DESCENT = "this is plain gradient descent. Use AdamW"
ADDED_UP = (
    "gradients add up from step to step. The gradients of a step must replace the previous ones"
)
FRESH = (
    "a new optimizer was made at every step, so its moments and its count of"
    " steps began again. Make one optimizer before the first step"
)
ONE_STEP = (
    "the optimizer has counted one step, although there are losses of several steps. Call step()"
    " once for each shard, and always on the same optimizer"
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
NO_STEP = (
    "no step changed the weights: these are the losses of the initial weights. Did the optimizer"
    " get the weights themselves, not copies? Do these weights have gradients?"
)
OWN_LOSS = (
    "these are this rank's own losses. The loss of the whole batch is their mean over the ranks"
)
DIVIDED_OWN_LOSS = (
    "these are this rank's own losses divided by the number of ranks. Add them"
    " up over the ranks, too"
)
LATE_LOSS = "these are the losses after the updates. Return the losses before them"
STOPPED = "training ended after step {} of {}. Make one step for each shard"
BY_TWO = "the sum was divided by 2. For the average over {}, divide it by {}"
OF_ROWS = (
    "the loss was the sum over each row, averaged over the rows. It must be the mean over all"
    " B·D entries (mlp.loss)"
)
OF_ENTRIES = "the loss was the sum over all entries. It must be their mean (mlp.loss)"
ALONE_ON_RANK = "these are this rank's own gradients. Average the gradients of all ranks"
OF_ONE_RANK = (
    "these are rank {}'s gradients. Did you broadcast them? Average the gradients of all ranks"
)
NOT_COPIED_BACK = (
    "these are this rank's own gradients, although this rank started all-reduces. Do you copy"
    " the bucket back into grad?"
)
UNREAD = (
    "these are this rank's own gradients divided by the number of ranks. Did your code read them"
    " before wait(), or never add them up?"
)
ADDED_AS_IT_LIES = (
    "the gradients were added up entry by entry, in the order in which the entries lie in memory."
    " The gradient of a transposed weight is transposed in memory, too. Average"
    " gradient.contiguous(), and use its result"
)
RESET = "What must be reset for the next pass?"
NOT_RESET = f"this is right in the first pass, and wrong in a later one. {RESET}"
MIXED_BUCKETS = (
    "gradients of different buckets were added together. Each rank started an all-reduce when its"
    " bucket was full, but here the ranks fill their buckets in different orders. Start the"
    " all-reduces in the same order on all ranks"
)
PASSED_BY = (
    "nothing was done. Here the parameters come from a generator, as from model.parameters(). A"
    " generator can be iterated over only once, and your code iterated over it again. Make a list"
    " of it first"
)
FROZEN_LEFT_OUT = (
    "the parameters that do not require a gradient were left out. All parameters"
    " must be overwritten, also those that are not trained"
)
AS_IT_LIES = (
    "your code wrote to a non-contiguous parameter as if it were contiguous. Broadcast"
    " parameter.contiguous(), and copy the received values into the parameter"
)
STRIDED_LEFT_OUT = (
    "the parameters that are not contiguous were left out. contiguous() makes a"
    " copy. After the broadcast, write its values back into the parameter"
)
KEPT = (
    "the caller's weights did not change. Did you call step()? Did each weight have its .grad?"
    " Did the optimizer get the caller's weights, not copies of them?"
)
STRIDED_KEPT = (
    "the weights that are not contiguous kept their values; the contiguous ones"
    " were trained. contiguous() makes a copy. The optimizer must hold the"
    " caller's own tensors"
)
OTHER_MEMORY = (
    "the parameter was given other memory (parameter.data = …). Copy the values into its existing"
    " memory, because an optimizer or a view may share this memory"
)

DEFAULTS: dict[str, Any] = {
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "weight_decay": 0.01,
    "amsgrad": False,
    "maximize": False,
}


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
    updates: float = math.inf,
    orders: Sequence[str] = (),
) -> Trained:
    """Train on all ranks with a mistake, or without one if no keyword is given.

    ``shards[rank][step]`` is a rank's part of a step's batch. ``factor`` multiplies the gradients.
    With ``alone``, each rank uses its own gradients, not the average. With ``adds_up``, gradients
    add up from step to step. With ``fresh``, each step makes a new optimizer. With
    ``averages_weights``, each rank makes its own step, and then the weights are averaged. Only the
    first ``updates`` steps update the weights; by default all steps do. With ``orders``, gradients
    are averaged in memory order: see ``averages_in_memory_order``.
    """
    n, steps = len(shards), len(shards[0])
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


def averages_in_memory_order(gradients: list[list], orders: Sequence[str]) -> list[list]:
    """Return, for each rank, averages of entries that lie at the same place in the ranks' memory.

    ``gradients[rank][layer]`` is a rank's own gradient. A gradient lies in memory row by row if
    ``orders[rank]`` is "C", and column by column if ``orders[rank]`` is "F". If all ranks have the
    same order, the averages are right.
    """
    n = len(gradients)
    flat = [
        sum(g.ravel(order) for g, order in zip(of_layer, orders)) / n
        for of_layer in zip(*gradients)
    ]
    return [
        [mean.reshape(g.shape, order=order) for mean, g in zip(flat, own)]
        for own, order in zip(gradients, orders)
    ]


def step_mistakes(gradients: list[list], orders: Sequence[str] = ()) -> list[dict]:
    """Return, for each rank, a dict from each mistake in averaging to the gradients that it gives.

    ``gradients[rank][layer]`` is a rank's own gradient, and ``orders[rank]`` is its order in
    memory: see ``averages_in_memory_order``. By default, all ranks have the same order.
    """
    n = len(gradients)
    average = [sum(of_layer) / n for of_layer in zip(*gradients)]
    ranks = "one rank" if n == 1 else f"{n} ranks"
    known = {BY_TWO.format(ranks, n): [n * g / 2 for g in average]} if n not in (2, 4) else {}
    if n == 1:
        return [known]
    known["this is the average, divided by the number of ranks once more"] = [
        g / n for g in average
    ]
    if len({g.shape for g in average}) == 1 and len(average) > 1:
        sentence = (
            "the ranks took the layers in different orders, so that one layer's gradient"
            " was added to another's"
        )
        mixed = [own if rank % 2 else own[::-1] for rank, own in enumerate(gradients)]
        met = [sum(of_layer) / n for of_layer in zip(*mixed)]
        known_here = [{sentence: met[::-1] if rank % 2 == 0 else met} for rank in range(n)]
    else:
        known_here = [{}] * n
    if len(set(orders)) > 1:
        wrong = averages_in_memory_order(gradients, orders)
        known_here = [here | {ADDED_AS_IT_LIES: own} for here, own in zip(known_here, wrong)]
    of_one = {OF_ONE_RANK.format(rank): own for rank, own in enumerate(gradients)}
    return [
        {ALONE_ON_RANK: own, UNREAD: [g / n for g in own]} | known | here | of_one
        for own, here in zip(gradients, known_here)
    ]


def loss_mistakes(right: list, rows: int, width: int) -> dict[str, list]:
    """Return a dict from each wrong mean to the gradients, or to the loss, that it gives.

    ``right`` lists the right gradients, or only the right loss. ``rows`` and ``width`` are the
    numbers of rows and columns of a shard. A mistake is left out if it changes nothing.
    """
    factors = {OF_ROWS: width, OF_ENTRIES: rows * width}
    return {
        sentence: [np.asarray(factor * value) for value in right]
        for sentence, factor in factors.items()
        if factor != 1
    }


def left_out(
    after: object, own: list, roots: list, frozen: set[int], strided: set[int]
) -> dict[str, list]:
    """Return a dict that explains which of a rank's parameters a broadcast left out.

    ``own`` and ``after`` are the rank's parameters before and after the broadcast, and ``roots``
    are the root's parameters. ``frozen`` has the indices of the parameters that do not require a
    gradient. ``strided`` has the indices of the parameters that are not contiguous. There are two
    mistakes. In the first, exactly the frozen parameters kept their values. In the second, exactly
    the strided parameters kept their values. In both, all other parameters have the root's values.
    In all other cases the dict is empty.
    """
    if not isinstance(after, (list, tuple)) or len(after) != len(own):
        return {}
    left = {i for i, (found, mine) in enumerate(zip(after, own)) if np.array_equal(found, mine)}
    right = {
        i for i, (found, theirs) in enumerate(zip(after, roots)) if np.array_equal(found, theirs)
    }
    if not left or not right or left & right or len(left | right) < len(own):
        return {}
    common = {FROZEN_LEFT_OUT: frozen, STRIDED_LEFT_OUT: strided}
    return {sentence: own for sentence, those in common.items() if left == those}


def require_average(run: Any, size: int) -> None:
    """Fail if the ranks sent too few bytes to average gradients of ``size`` bytes.

    Without compression, the average over n ranks takes at least 2(n−1) · ``size`` bytes, because
    n − 1 ranks have to add their gradients, and n − 1 ranks have to get the result. If a program
    sends fewer bytes, it exchanges something else, such as the batch.
    """
    n = run.report.size
    sent = sum(o.traffic for rank in range(n) for o in run.operations(rank))
    least = 2 * (n - 1) * size
    text = (
        f"the ranks sent {sent:.0f} bytes in all. An average of gradients of {size} bytes over {n}"
        f" ranks takes at least {least}. Does each rank compute the gradients of the whole batch?"
        " Each rank must compute the gradients of its own rows. Average them over the ranks."
    )
    # A rank's traffic may be a fraction of a byte. Such floats do not add up exactly.
    run.require(sent > least - 0.5, text)


def require_default_adamw(run: Any) -> None:
    """Fail unless ``train`` returned a pair with an AdamW whose options have their defaults.

    The learning rate may differ. Checks call this function first, because wrong weights and states
    alone hardly show that a default was changed.
    """
    for rank, value in enumerate(run.values()):
        run.require(
            isinstance(value, (list, tuple)) and len(value) == 2,
            f"rank {rank}'s train did not return a pair. Return (losses, optimizer).",
        )
        difference = optimizer_difference(value[1])
        run.require(difference is None, difference)


def optimizer_difference(optimizer: object) -> str | None:
    """Return how an optimizer differs from AdamW with default settings and any learning rate.

    Return None if there is no difference, or if ``optimizer`` does not describe an optimizer.
    """
    if not isinstance(optimizer, dict) or not isinstance(groups := optimizer.get("groups"), list):
        return None
    if (kind := optimizer.get("optimizer")) != "AdamW":
        return f"the optimizer is of the type {kind}. Use torch.optim.AdamW."
    for group in groups:
        for name, default in DEFAULTS.items():
            got = group.get(name) if isinstance(group, dict) else None
            if not _is_equal(got, default):
                kind = "is" if np.ndim(default) == 0 else "are"
                return (
                    f"the optimizer's {name} {kind} {got}, but AdamW's default is {default}. Change"
                    " only lr, and keep all other defaults."
                )
    return None


def own_or_not_copied(run: Any, rank: int) -> str:
    """Return the sentence for a rank that has only its own gradients after a pass with buckets."""
    passes_over_generator = run.marks(rank, "gone through again")
    if passes_over_generator:
        return PASSED_BY
    started = any(o.kind == "all_reduce" for o in run.operations(rank))
    return NOT_COPIED_BACK if started else ALONE_ON_RANK


def optimizer_hint(value: object, lr: float) -> str:
    """Return the cause of wrong weights, moments or losses that an optimizer shows, or "".

    ``value`` is what ``train`` returned. Two causes are told: the optimizer has another learning
    rate, or its state counts a single step although there are losses of several steps.
    """
    if not isinstance(value, (list, tuple)) or len(value) != 2 or not isinstance(value[1], dict):
        return ""
    losses, optimizer = value
    groups, state = optimizer.get("groups"), optimizer.get("state")
    of_first = groups[0] if isinstance(groups, list) and groups else None
    rate = of_first.get("lr") if isinstance(of_first, dict) else None
    if isinstance(rate, float) and not math.isclose(rate, lr):
        return f"AdamW trained at lr={rate:g}, not at lr={lr:g}"
    of_weight = state.get("0") if isinstance(state, dict) else None
    counted = of_weight.get("step") if isinstance(of_weight, dict) else None
    if isinstance(losses, np.ndarray) and losses.size > 1 and _is_equal(counted, 1):
        return ONE_STEP
    return ""


def _is_equal(got: object, expected: object) -> bool:
    try:
        return bool(np.array_equal(np.asarray(got, float), np.asarray(expected, float)))
    except (TypeError, ValueError):
        return False


def training_mistakes(
    weights: list, shards: list, lr: float, orders: Sequence[str] = ()
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
    if len(set(orders)) > 1:
        made[ADDED_AS_IT_LIES] = train(weights, shards, right, orders=orders)
    of_weights = [
        {
            KEPT if sentence == NO_STEP else sentence: own[rank]
            for sentence, (own, _) in made.items()
        }
        for rank in range(n)
    ]
    of_losses = [
        {sentence: losses.mean(axis=0) for sentence, (_, losses) in made.items()} for _ in range(n)
    ]
    _, losses = train(weights, shards, right)
    late = _after_the_updates(weights, shards, right)
    for rank in range(n):
        own = {OWN_LOSS: losses[rank], DIVIDED_OWN_LOSS: losses[rank] / n} if n > 1 else {}
        of_losses[rank] |= own | {LATE_LOSS: late}
    return of_weights, of_losses


def _after_the_updates(weights: list, shards: list, optimizer: Callable) -> np.ndarray:
    """Return the loss of each step's batch, computed with the weights after that step."""
    after = []
    for step in range(len(shards[0])):
        reached, _ = train(weights, [own[: step + 1] for own in shards], optimizer)
        after.append(np.mean([loss_and_gradients(reached[0], own[step])[0] for own in shards]))
    return np.array(after)
