"""Finds likely causes of wrong schedules in Problems 8.1 and 8.3.

Each function looks at schedules that have failed, and returns a sentence that begins with a space,
or "" if it finds no cause. ``stages`` has the schedule of each stage.
"""

import itertools
from typing import Any

from grader.reference.chunked import Action, Stages, interleaved_alive, layers_of_chunks
from grader.reference.counting import enumerated
from grader.reference.returned_lists import are_ints, as_lists

BACKWARD = "B", "BW"
WHEN_W = "On stage s, run a W after every B except the first s, and the last s W at the end."


def why_other_layers(found: Any, num_layers: int, stage: int, n: int, v: int) -> str:
    """Return a sentence that says why a stage's layers are wrong, or "" if no cause is found.

    ``found`` is the student's result: the layers of each chunk.
    """
    each, got = num_layers // (n * v), as_lists(found)
    right = layers_of_chunks(num_layers, stage, n, v)
    in_a_row = [
        list(range(part * each, (part + 1) * each)) for part in range(stage * v, v + stage * v)
    ]
    if got == in_a_row:
        return " These are consecutive parts of the model. Chunk c of stage s is part c·n + s."
    if are_ints(found) and list(found) == [l for own in right for l in own]:
        return " Return a list of ranges, one for each chunk."
    if got == [list(range(part, part + 1)) for part in range(stage, n * v, n)]:
        return " These ranges count parts, not layers. A part has L/(n·v) layers."
    return ""


def why_too_early(stage: int, actions: list[Action], n: int) -> str:
    """Say why a backward pass comes before its own forward pass, on one of n stages.

    Return "" if no backward pass does so, for example because actions are missing.
    """
    if wrong := _other_order(stage, actions, n):
        return wrong
    early = list(itertools.takewhile(lambda action: action[0] not in BACKWARD, actions))
    own = ("F", *actions[len(early)][1:]) if len(early) < len(actions) else None
    if own in early or own not in actions:
        return ""
    first = _warm_up(actions)
    return (
        f" Stage {stage} runs {first or 'no'} forward pass{'es' * (first > 1)} before its first"
        " backward pass. Is the warm-up too short?"
    )


def why_stuck(stages: Stages) -> str:
    """Say why stages wait for ever."""
    if wrong := _first_other_order(stages):
        return wrong
    warm_ups = [_warm_up(own) for own in stages]
    if warm_ups != sorted(warm_ups, reverse=True):
        return (
            f" Before their first backward pass, the stages run {enumerated(warm_ups)} forward"
            " passes. Earlier stages wait longer for a gradient. So before its first backward"
            " pass, a stage must run at least as many forward passes as the next stage."
        )
    return ""


def _warm_up(actions: list[Action]) -> int:
    """Return the number of forward passes before the first backward pass."""
    before = itertools.takewhile(lambda action: action[0] not in BACKWARD, actions)
    return sum(kind == "F" for kind, *_ in before)


def _first_other_order(stages: Stages) -> str:
    said = (_other_order(stage, own, len(stages)) for stage, own in enumerate(stages))
    return next(filter(None, said), "")


def _other_order(stage: int, actions: list[Action], n: int) -> str:
    """Say which pass of a stage is not in the order that the student's docstring describes.

    With several chunks, micro-batches go through a chunk in groups of n. The backward passes have
    the order of the forward passes, but they go from the last chunk to the first. The micro-batches
    may begin in any order on each stage. Return "" if no pass is in a wrong order.
    """
    forward = [action for action in actions if action[0] == "F"]
    backward = [action for action in actions if action[0] in BACKWARD]
    v = 1 + max((chunk for _, chunk, _ in actions), default=0)
    begun = [i for _, chunk, i in forward if chunk == 0]
    if len(forward) != v * len(begun):
        return ""  # an action is missing, or it is there twice
    groups = [begun[at : at + n] for at in range(0, len(begun), n)]
    visits = [(chunk, i) for group in groups for chunk in range(v) for i in group]
    for name, found, due, way in (
        ("Forward", forward, visits, "first chunk to the last"),
        ("Backward", backward, [(v - 1 - c, i) for c, i in visits], "last chunk to the first"),
    ):
        if sorted(action[1:] for action in found) != sorted(due):
            return ""
        for number, (action, place) in enumerate(zip(found, due), 1):
            if action[1:] == place:
                continue
            text = f" {name} pass number {number} of stage {stage} is {action}."
            right = (action[0], *place)
            if v == 1:
                return f"{text} In the order of the forward passes, it would be {right}."
            return (
                f"{text} In the docstring's order, it would be {right}: each group of"
                f" {_micro_batches(n)} goes through all chunks, from the {way}, before the next"
                " group."
            )
    return ""


def why_interleaved_is_late(stages: Stages) -> str:
    """Say why interleaved schedules end late."""
    if wrong := _first_other_order(stages):
        return wrong
    n = len(stages)
    v = 1 + max(chunk for own in stages for _, chunk, _ in own)
    m = len(stages[0]) // (2 * v)
    for stage, own in enumerate(stages):
        due = min(v * m, v * n - stage)  # a longer warm-up is allowed, but not needed
        if (first := _warm_up(own)) < due:
            return (
                f" Stage {stage} runs only {first} forward pass{'es' * (first > 1)} before its"
                f" first backward pass. It needs {due}, so that other stages do not wait. Is the"
                " warm-up too short?"
            )
    return next(
        filter(None, (_long_warm_up(stage, own, n, v) for stage, own in enumerate(stages))), ""
    )


def _long_warm_up(stage: int, actions: list[Action], n: int, v: int) -> str:
    first = _warm_up(actions)
    if first <= (most := interleaved_alive(stage, n, v)):
        return ""
    text = (
        f" Stage {stage} runs {first} forward passes before its first backward pass. At most {most}"
        " are right. Is the warm-up too long?"
    )
    if v == 1:
        text += (
            " With one chunk this is 1F1B: on stage s of n, the warm-up has n − s − 1 forward"
            " passes, and one more comes before the first backward pass."
        )
    return text


def why_interleaved_holds_much(stage: int, actions: list[Action], n: int) -> str:
    """Say why a stage keeps many activations."""
    order = [(chunk, i) for kind, chunk, i in actions if kind == "F"]
    v = 1 + max(chunk for chunk, _ in order)
    early = order[: sum(chunk == 0 for chunk, _ in order)]
    if v > 1 and n < len(early) and all(chunk == 0 for chunk, _ in early):
        return (
            " In your schedule, all micro-batches go through chunk 0 before the first goes through"
            f" chunk 1. Take the micro-batches in groups of {n}. Forward and backward passes must"
            " come in turn after the warm-up."
        )
    if _warm_up(actions) == len(order) > interleaved_alive(stage, n, v) + 1:
        return " All forward passes come before all backward passes, as in GPipe."
    return _long_warm_up(stage, actions, n, v) or (
        " The warm-up is not too long. After it, forward and backward passes must come in turn."
    )


def why_zero_bubble_is_late(stages: Stages) -> str:
    """Say why zero-bubble schedules end late."""
    if wrong := _first_other_order(stages):
        return wrong
    n, m = len(stages), len(stages[0]) // 3
    if n > 1 and m > 1 and _behind(stages[-1]) == 0:
        return (
            f" On stage {n - 1}, each W comes before the next B. This delays the next B, for which"
            f" all other stages wait. {WHEN_W}"
        )
    for stage, own in enumerate(stages):
        if (first := _warm_up(own)) < (due := min(n - stage, m)):
            return (
                f" Before its first B, stage {stage} runs {first} forward"
                f" pass{'es' * (first > 1)}, but 1F1B runs {due}. Is the warm-up too short?"
            )
    if n > 1 and m > 1 and _behind(stages[0]) == m - 1:
        return " On stage 0 all W come at the end. Run W when the stage would otherwise wait."
    for stage, own in enumerate(stages):
        if (behind := _behind(own)) < min(stage, m - 1):
            lag = f"W is at most {_micro_batches(behind)} behind B"
            if behind == 0:
                lag = "each W comes before the next B"
            return f" On stage {stage}, {lag}. {WHEN_W}"
    said = (why_zero_bubble_holds_much(stage, own, n) for stage, own in enumerate(stages))
    return next(filter(None, said), "")


def _micro_batches(count: int) -> str:
    return f"{count} micro-batch{'es' * (count != 1)}"


def _behind(actions: list[Action]) -> int:
    """Return by how many micro-batches W is at most behind B.

    The result is 0 if each W comes before the next B.
    """
    waiting, most = 0, 0
    for kind, *_ in actions:
        waiting += (kind == "B") - (kind == "W")
        most = max(most, waiting)
    return most - 1


def why_zero_bubble_holds_much(
    stage: int, actions: list[Action], n: int, ends: tuple[str, ...] = ("W",)
) -> str:
    """Say why a stage keeps many micro-batches from F to an action of a kind in ``ends``."""
    m = len(actions) // 3
    if (first := _warm_up(actions)) > n - stage:
        return (
            f" Before its first B, stage {stage} runs {first} forward passes, but 1F1B runs"
            f" {n - stage}. Is the warm-up too long?"
        )
    if "W" not in ends:
        return " The warm-up is not too long. After it, F and B must come in turn."
    if (behind := _behind(actions)) == m - 1 > stage:
        return (
            " All W come at the end. A micro-batch keeps its activation until its W, so run W"
            " earlier."
        )
    if behind > stage:
        return f" On stage {stage}, W is up to {_micro_batches(behind)} behind B. {WHEN_W}"
    return ""
