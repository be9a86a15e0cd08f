"""Explains that ranks use their process groups in different orders, or use different groups."""

from grader.diagnosis.finding import Line, likely_line
from grader.diagnosis.rank_summaries import rank_list
from grader.wire.agreement import Waiting
from grader.wire.events import Operation, operations
from grader.world.report import WorldReport

NO_GROUP = ("send", "recv")  # these connect two ranks, and the group makes no difference


def groups_in_different_orders(waiting: list[Waiting]) -> list[Line]:
    """Return a line if ranks wait for each other in a cycle, in collectives of different groups.

    The line names two ranks of the cycle: the first one waits for the second one, which waits in
    another group. Return [] if there is no such cycle. ``waiting`` has the operations that lack a
    partner.
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


def in_another_group(report: WorldReport, missed: list[int], waits: Operation) -> list[Line]:
    """Return a line about a rank that issued the collective ``waits`` in another group.

    ``missed`` are the ranks that returned without taking part in ``waits``. Return [] if none of
    these ranks issued such a collective at the same line. Also return [] if the waiting rank or the
    other rank used several groups at this line. In this case the line is in a function for several
    groups, and a call of this function was probably left out.
    """
    if any(o.group != waits.group for o in _at_its_line(report, waits.rank, waits)):
        return []
    for rank in missed:
        there = _at_its_line(report, rank, waits)
        if there and all(o.group != waits.group for o in there):
            return [
                likely_line(
                    f"rank {rank} called the {waits.name} at {waits.where} in the group of"
                    f" {rank_list(there[-1].group)}, but rank {waits.rank} called it in the group"
                    f" of {rank_list(waits.group)}.",
                    f"{rank_list(missed).capitalize()} returned without taking part in the call"
                    f" of rank {waits.rank}. Which group should this line use?",
                )
            ]
    return []


def _at_its_line(report: WorldReport, rank: int, operation: Operation) -> list[Operation]:
    """Return the operations of the same kind that a rank issued in the same call and line."""
    place = operation.kind, operation.file, operation.line
    issued = operations(report.trails[rank], operation.call)
    return [o for o in issued if (o.kind, o.file, o.line) == place]


def _told(cycle: list[Operation]) -> list[Line]:
    """Return a line about the first two neighbours in a cycle that wait in different groups."""
    for one, other in zip(cycle, [*cycle[1:], cycle[0]]):
        if _key(one) != _key(other):
            return [
                likely_line(
                    _sentence(one, other),
                    "Let all ranks use their groups in the same order, for example first the groups"
                    " of rows, and then the groups of columns.",
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
