"""Says in words that ranks use their process groups in different orders."""

from grader.diagnosis.finding import Line, likely_line
from grader.diagnosis.rank_summaries import rank_list
from grader.wire.agreement import Waiting
from grader.wire.events import Operation

NO_GROUP = ("send", "recv")  # between two ranks, whatever the group


def groups_in_different_orders(waiting: list[Waiting]) -> list[Line]:
    """Return a line about two ranks that wait in different groups, one of them for the other.

    Return [] unless ranks wait for each other in a cycle, each in a collective of a group.
    ``waiting`` has the operations that lack a partner.
    """
    first_of = {w.operation.rank: w for w in reversed(waiting)}
    for begin in sorted(first_of):
        path = [begin]
        while path[-1] in first_of and first_of[path[-1]].operation.kind not in NO_GROUP:
            following = next(iter(first_of[path[-1]].absent), begin)
            if following in path:
                cycle = [first_of[rank].operation for rank in path[path.index(following) :]]
                return _told(cycle)
            path.append(following)
    return []


def _told(cycle: list[Operation]) -> list[Line]:
    """Return a line about the first two neighbours in a cycle that wait in different groups."""
    for one, other in zip(cycle, [*cycle[1:], cycle[0]]):
        if _key(one) != _key(other):
            return [
                likely_line(
                    _sentence(one, other),
                    "Let all ranks use their groups in the same order, for example first the groups"
                    " of rows, and then those of columns.",
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
