"""Writes the text in a message that shows a call's arguments."""

import json
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from grader.world.arrays import PerRank, RequiresGrad, Strided

# These drivers pass all their arguments to the student's function. Other drivers use some of their
# arguments themselves.
OF_STUDENT = (
    "plain",
    "received_at_wait",
    "in_turn",
    "refilled",
    "described",
    "emptied",
    "twice",
    "generator",
    "trained",
    "views",
)
# The arguments of these drivers are the arguments of several calls.
IN_TURN = {"in_turn", "refilled", "refilled_copies"}
# These drivers pass their positional arguments to the student's function in the same order. So the
# message can show each argument with the name of the function's parameter at this position.
IN_ORDER = {
    *OF_STUDENT,
    "beside_experts",
    "beside_products",
    "followed_layers",
    "freed",
    "in_groups",
    "metered",
    "on_mesh",
    "overwritten_after",
    "renewed_layers",
    "rests",
    "saves",
    "swept",
    "with_timeline",
} - IN_TURN
MAX_ACTIONS = 8  # how many actions of a schedule a message shows
# For each function that students write, the names of its parameters. ``packaging.stubs`` writes
# this JSON file.
PARAMETERS = json.loads((Path(__file__).parents[1] / "parameters.json").read_text())


def call_note(function: str, args: Sequence, kwargs: Mapping, driver: str) -> str:
    """Return a short text about a call's arguments that distinguishes the calls of one check.

    If an argument has one value for each rank, the text shows the first value that is not None.
    """
    parts = []
    names = PARAMETERS.get(function, ()) if driver in IN_ORDER else ()
    arguments = list(zip_longest(names[: len(args)], args, fillvalue=""))
    if driver in OF_STUDENT:
        arguments += kwargs.items()
    for name, value in arguments:
        of_ranks = value.values if isinstance(value, PerRank) else [value]
        value = next((own for own in of_ranks if own is not None), None)
        note = _layout_note(of_ranks)
        if isinstance(value, RequiresGrad):
            value, note = value.array, " that requires a gradient"
        if isinstance(value, (np.ndarray, Strided)):
            array = value.array if isinstance(value, Strided) else value
            text = f"{array.dtype} {array.shape}{note}"
        elif isinstance(value, (int, float, str)) or (_is_short(value) and driver not in IN_TURN):
            text = repr(value)
        elif driver in IN_ORDER and _is_schedule(value):
            text = f"[{_actions(value)}]"
            text += " on rank 0" if len(of_ranks) > 1 else ""
        else:
            continue
        parts.append(f"{name}={text}" if name else text)
    return ", ".join(parts)


def turn_note(function: str, turn: Sequence | PerRank, kwargs: Mapping) -> str:
    """Return the text about one of the calls that a driver of ``IN_TURN`` makes.

    ``turn`` holds the arguments of this call. If ranks have different arguments, the text shows
    those of rank 0.
    """
    args = turn.values[0] if isinstance(turn, PerRank) else turn
    return call_note(function, args, kwargs, "plain")


def _is_short(value: Any) -> bool:
    """Return whether this is a list or a tuple of one to eight numbers or strings."""
    return (
        isinstance(value, (list, tuple))
        and 0 < len(value) < 9
        and all(type(v) in (int, float, str) for v in value)
    )


def _is_schedule(value: Any) -> TypeGuard[list[tuple]]:
    """Return whether this is a list of actions: tuples of a kind and one or two numbers."""
    return isinstance(value, list) and all(
        isinstance(action, tuple)
        and len(action) in (2, 3)
        and [type(entry) for entry in action] == [str, int, int][: len(action)]
        for action in value
    )


def _actions(schedule: list[tuple]) -> str:
    """Return a short text of a schedule's first actions: “F0 F1 B0 …”, or “F0,1 …” with chunks."""
    shown = [kind + ",".join(map(str, numbers)) for kind, *numbers in schedule[:MAX_ACTIONS]]
    return " ".join([*shown, "…"] if len(schedule) > MAX_ACTIONS else shown)


def _layout_note(of_ranks: Sequence[Any]) -> str:
    layouts = {
        own.layout if isinstance(own, Strided) else "contiguous"
        for own in of_ranks
        if own is not None
    }
    if layouts == {"contiguous"}:
        return ""
    return " non-contiguous" if len(layouts) == 1 else " with strides that differ between ranks"
