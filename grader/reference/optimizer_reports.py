"""Judges the optimizer that a student's code made, from the report of a driver.

The report is a dict with the optimizer's type, the options of its groups, and its state.
"""

import math
from typing import Any

import numpy as np

ONE_STEP = (
    "the optimizer has counted one step, although there are losses of several steps. Call step()"
    " once for each shard, and always on the same optimizer"
)
DEFAULTS: dict[str, Any] = {
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "weight_decay": 0.01,
    "amsgrad": False,
    "maximize": False,
}


def require_default_adamw(run: Any) -> None:
    """Fail unless ``train`` returned a pair with an AdamW whose options have their defaults.

    The learning rate may differ. Checks call this function first, because a changed default is hard
    to recognise in the weights and states.
    """
    for rank, value in enumerate(run.values()):
        run.require(
            isinstance(value, (list, tuple)) and len(value) == 2,
            f"rank {rank}'s train did not return a pair. Return (losses, optimizer).",
        )
        require_defaults(run, value[1])


def require_defaults(run: Any, optimizer: object) -> None:
    """Fail if an optimizer is not AdamW with default settings. The learning rate is not checked."""
    difference = optimizer_difference(optimizer)
    run.require(difference is None, difference)


def optimizer_difference(optimizer: object) -> str | None:
    """Return a sentence if an optimizer is not AdamW with default settings, else None.

    The learning rate is not checked. Return None, too, if ``optimizer`` does not describe an
    optimizer.
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


def optimizer_hint(value: object, lr: float) -> str:
    """Return why weights, moments or losses are wrong, or "" if the optimizer shows no cause.

    ``value`` is what ``train`` returned. The function knows two causes: the learning rate of the
    optimizer is not ``lr``, or the optimizer has counted one step although ``train`` returned
    several losses.
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
