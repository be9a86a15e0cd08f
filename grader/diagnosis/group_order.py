"""Says in words that ranks use their process groups in different orders."""

from grader.diagnosis.finding import Line, likely_line
from grader.diagnosis.rank_summaries import rank_list
from grader.wire.agreement import Waiting
from grader.wire.events import Operation

NO_GROUP = ("send", "recv")  # between two ranks, whatever the group


def groups_in_different_orders(waiting: list[Waiting]) -> list[Line]:
    """Return a line about two ranks that wait in different groups, one of them for the other.

    Return [] if there are no such ranks. ``waiting`` has the operations that lack a partner.
    """
    collectives = [w for w in waiting if w.operation.kind not in NO_GROUP]
    first_of = {w.operation.rank: w.operation for w in reversed(collectives)}
    for found in collectives:
        for rank in found.absent:
            other = first_of.get(rank)
            if other and _key(other) != _key(found.operation):
                return [
                    likely_line(
                        _sentence(found.operation, other),
                        "Let all ranks use their groups in the same order, for example first the"
                        " groups of rows, and then those of columns.",
                    )
                ]
    return []


def _key(operation: Operation) -> tuple:
    return tuple(operation.group), operation.group_name


def _sentence(one: Operation, other: Operation) -> str:
    if one.group == other.group:
        return (
            f"rank {one.rank} waits in one group of {rank_list(one.group)}, and rank {other.rank}"
            " in another group of the same ranks. Each call of new_group makes another group."
        )
    return (
        f"the ranks use their groups in different orders. Rank {one.rank} waits in the group of"
        f" {rank_list(one.group)}, but rank {other.rank} waits in the group of"
        f" {rank_list(other.group)}."
    )
