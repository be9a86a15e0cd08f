"""Judges pipeline schedules by what they achieve.

A schedule must contain every pass exactly once, in an order that all stages can carry out. The
schedule should end early, and keep few micro-batches alive at a time. Several different schedules
can be right.
"""

from collections import Counter
from typing import Any

from grader.reference.returned_lists import as_tuples
from grader.wire.ledger import ENTRIES

Action = tuple[str, int]

OWN_WINDOWS = (
    "the time of each stage was measured from its own first start to its own last end. Use the same"
    " time for all stages: from the earliest start to the latest end of all spans"
)
OF_ONE_STAGE = (
    "the work of all stages was divided by the time of one stage. Multiply this time by the number"
    " of stages"
)
WORK = "this is the fraction of time in which stages work. The bubble is the rest"


def as_actions(value: Any) -> list[Action] | None:
    """Return the schedule as a list of (kind, micro-batch), or None if it is not such a list."""
    actions = as_tuples(value, str, int)
    if actions is None or any(kind not in ("forward", "backward") for kind, _ in actions):
        return None
    return actions


def numbers(one: str, many: str, count: int) -> str:
    """Return words about the valid indices, for example “the chunks are 0 to 3”.

    ``one`` and ``many`` are the singular and the plural, for example "chunk" and "chunks".
    """
    return f"the {many} are 0 to {count - 1}" if count > 1 else f"the only {one} is 0"


def complete(actions: list[Action], m: int) -> str | None:
    """Return a sentence about an error in one stage's schedule of m micro-batches, or None.

    A schedule is wrong if a pass is missing or repeated, if a micro-batch does not exist, or if a
    backward pass comes before its forward pass.
    """
    wanted = {(kind, i): 0 for i in range(m) for kind in ("forward", "backward")}
    counted = wanted | Counter(actions)
    for action in wanted:
        if (times := counted[action]) != 1:
            return f"{action} is there {times} times, not once" if times else f"{action} is missing"
    if strange := [action for action in actions if action not in wanted]:
        return (
            f"{strange[0]} is not a valid action: the kinds are forward and backward,"
            f" {numbers('micro-batch', 'micro-batches', m)}"
        )
    place = {action: number for number, action in enumerate(actions)}
    early = [i for i in range(m) if place["backward", i] < place["forward", i]]
    return f"('backward', {early[0]}) comes before ('forward', {early[0]})" if early else None


def most_alive(actions: list[Action]) -> tuple[int, Action]:
    """Return the largest number of micro-batches alive, and the action that first reaches it.

    A micro-batch is alive from its forward pass to its backward pass.
    """
    alive, most, after = 0, 0, actions[0]
    for action in actions:
        alive += 1 if action[0] == "forward" else -1
        if alive > most:
            most, after = alive, action
    return most, after


def warm_up(stage: int, actions: list[Action], due: int) -> str:
    """Return a sentence that says how many forward passes the warm-up has, and how many are right.

    ``due`` is the right number of forward passes before the first backward pass. If the schedule
    has this number, return an empty string. Otherwise the sentence begins with a space. If the
    warm-up is too short, a second sentence says that the later stages wait.
    """
    found = [kind for kind, _ in actions].index("backward")
    if found == due:
        return ""
    so = "" if found > due else " So the later stages have nothing to do."
    return (
        f" Before its first backward pass, stage {stage} runs {found} forward"
        f" pass{'es' if found != 1 else ''}, not {due}.{so}"
    )


def makespan(stages: list[list[Action]], forward: float, backward: float) -> float | str:
    """Return the time at which all stages have ended, or a sentence if stages wait for ever.

    The sentence names the actions at which the stages wait for each other. Every action begins as
    soon as its stage and its input are ready. Messages take no time. ``forward`` is the time of a
    forward pass, and ``backward`` the time of a backward pass, in the same unit.
    """
    ended: dict[tuple[str, int, int], float] = {}
    free = [0.0] * len(stages)
    at = [0] * len(stages)
    moved = True
    while moved:
        moved = False
        for stage, own in enumerate(stages):
            while at[stage] < len(own):
                kind, i = own[at[stage]]
                source = _source(kind, i, stage, len(stages))
                if source and source not in ended:
                    break
                start = max(free[stage], ended[source] if source else 0.0)
                free[stage] = ended[kind, i, stage] = start + (
                    forward if kind == "forward" else backward
                )
                at[stage] += 1
                moved = True
    stuck = [stage for stage, actions in enumerate(stages) if at[stage] < len(actions)]
    if stuck:
        waits = [f"stage {s} waits at {stages[s][at[s]]}" for s in stuck]
        return (
            f"no stage can go on: {', '.join(waits)}. Each of these actions needs the same action"
            " on a neighbouring stage, but that stage waits at this action or before it"
        )
    return max(free)


def _source(kind: str, i: int, stage: int, num_stages: int) -> tuple[str, int, int] | None:
    """Return the neighbour's action whose result this action needs, or None if there is none."""
    if kind == "forward":
        return ("forward", i, stage - 1) if stage > 0 else None
    return ("backward", i, stage + 1) if stage < num_stages - 1 else None


def require_loss_in_spans(run: Any, stage: int, entries: int, m: int) -> None:
    """Fail if the last stage computes the losses of m micro-batches outside of its spans.

    ``entries`` is the number of entries in a micro-batch's y. An operator in the ledger that reads
    exactly this number of entries counts as work on the loss or on its gradient. At most m − 1
    such operators may be outside of all spans.
    """
    spans = run.spans(stage)
    work = [e.at for e in run.ledger(stage) if e.kind == ENTRIES and e.amount == entries]
    outside = [at for at in work if not any(span.start <= at <= span.end for span in spans)]
    run.require(
        len(outside) < m,
        f"on stage {stage}, the last stage, entries of a micro-batch's y were squared, scaled or"
        f" added up {len(outside)} times outside of all spans. Compute the loss and its gradient"
        " inside a span: they are work, too.",
    )
