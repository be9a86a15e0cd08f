"""Finds out whether the ranks agree on what they communicate, and who waits for whom.

gloo leaves many disagreements unreported. For example, one rank may reduce 4 elements and another
6, or one may use sum and another max. Then the ranks get wrong numbers and no error. This module
finds such disagreements among the operations that belong together (see ``matches``):

- The operations of a collective must have the same kind, number of elements, dtype, reduction and
  root on all ranks of the group. In an all-to-all, the number of elements may differ. But the
  number that rank i sends to rank j must be the number that rank j expects from rank i.
- A send and its receive must have the same number of elements and the same dtype.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from grader.wire.events import GroupMade, Operation, groups_made
from grader.wire.matches import Matches


@dataclass(frozen=True)
class Disagreement:
    """Operations, or new groups, that belong together but do not agree.

    ``sides`` has one operation, or one group, for each rank concerned. ``what`` names the property
    in which these sides differ.
    """

    what: str
    sides: Sequence[Operation | GroupMade]
    advice: str = ""  # a sentence for the end of the message

    def __str__(self) -> str:
        groups = defaultdict(list)
        for side in self.sides:
            groups[str(side)].append(side.rank)
        lines = [f"{_ranks(ranks)}: {text}" for text, ranks in groups.items()]
        return (
            f"The ranks disagree about {self.what}:\n"
            + "\n".join(f"    {line}" for line in lines)
            + f"\n{self.advice}".rstrip()
        )


@dataclass(frozen=True)
class Waiting:
    """An operation that a rank has issued, and that the ranks in ``absent`` never joined."""

    operation: Operation
    absent: list[int]


@dataclass(frozen=True)
class IncompleteGroup:
    """A group that some ranks have begun to make, and that the ranks in ``absent`` never made.

    ``made`` has the call of each rank that has begun to make the group.
    """

    made: list[GroupMade]
    absent: list[int]


# The values of ``Disagreement.what``: of a collective, of a message, and of new groups.
OPERATION = "which operation this is"
ELEMENTS = "how many elements there are"
BLOCKS = "how large the blocks are"
DTYPE = "the dtype"
REDUCTION = "the reduction"
ROOT = "the root"
SPLIT_SIZES = "the split sizes"  # only of an all-to-all
MESSAGE = "what is sent"
NEW_GROUP = "which group they make"

MAKE_ALL = "All ranks must make all groups in the same order, also groups that they are not in."


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks))


def examine(matching: Matches) -> tuple[list[Disagreement], list[Waiting]]:
    """Return the disagreements, and the operations that still wait for other ranks.

    The disagreements are sorted by the time at which the last of their operations was issued. A
    group's later collectives are not examined after the first disagreement in the group. The same
    holds after a collective for which some ranks are in a later call than others.
    """
    disagreements: list[Disagreement] = []
    waiting: list[Waiting] = []
    for of_group in matching.collectives:
        for found in of_group:
            present = found.operations
            first = min(operation.call for operation in present)
            if gone_on := [operation.rank for operation in present if operation.call > first]:
                waiting += [Waiting(o, gone_on) for o in present if o.call == first]
                break  # the ranks in gone_on are in a later call, and did not take part
            if what := difference(present):
                advice = _about_splits(present) if what == SPLIT_SIZES else ""
                disagreements.append(Disagreement(what, present, advice))
                break  # the later collectives of this group are matched wrongly
            if found.absent:
                waiting += [Waiting(operation, found.absent) for operation in present]
    for found in sorted(
        matching.messages, key=lambda found: (found.operations[0].rank, found.operations[0].at)
    ):
        if found.absent:
            waiting.append(Waiting(found.operations[0], found.absent))
        elif found.is_certain and not found.message_fits():
            disagreements.append(Disagreement(MESSAGE, found.operations))
    disagreements.sort(key=lambda d: max(side.at for side in d.sides))
    return disagreements, waiting


def examine_groups(trails: list[list]) -> tuple[Disagreement | None, list[IncompleteGroup]]:
    """Return the first disagreement about the groups that ranks make, and the incomplete groups.

    An incomplete group is a group that some ranks began to make, and other ranks never made.
    ``trails`` has the trail of each rank. Groups with ``is_local`` are left out. Of the remaining
    groups, the k-th groups of all ranks belong together, and must have the same ranks. After the
    first disagreement nothing more is examined.
    """
    made = [[group for group in groups_made(trail) if not group.is_local] for trail in trails]
    incomplete: list[IncompleteGroup] = []
    for k in range(max(map(len, made), default=0)):
        present = [of_rank[k] for of_rank in made if k < len(of_rank)]
        if len({tuple(group.ranks) for group in present}) > 1:
            return Disagreement(NEW_GROUP, present, MAKE_ALL), incomplete
        if absent := [rank for rank, of_rank in enumerate(made) if k >= len(of_rank)]:
            incomplete.append(IncompleteGroup(present, absent))
    return None, incomplete


def _elements(operation: Operation) -> int | None:
    """Return the number of elements, or None if the ranks need not agree about it."""
    return None if operation.kind in ("all_to_all", "barrier") else operation.elements


def _unequal_blocks(operation: Operation) -> tuple[int, ...] | None:
    """Return the sizes of the blocks of a reduce-scatter, or None if they are equal."""
    is_unequal = operation.kind == "reduce_scatter" and len(set(operation.sent)) > 1
    return tuple(operation.sent) if is_unequal else None


# In what the operations of a collective must agree. If they differ in several of these, the message
# to the student names only the first. So a cause stands before its consequences: different
# operations, for example, often have different roots, too.
ASPECTS: tuple[tuple[str, Callable[[Operation], Any]], ...] = (
    (OPERATION, lambda operation: operation.kind),
    (ELEMENTS, _elements),
    (BLOCKS, _unequal_blocks),
    (DTYPE, lambda operation: operation.dtype),
    (REDUCTION, lambda operation: operation.reduction),
    (ROOT, lambda operation: operation.root),
)


def difference(operations: list[Operation]) -> str | None:
    """Return the first of ``ASPECTS`` in which a collective's operations differ, in plain words.

    If they agree in all of these, but are an all-to-all whose split sizes do not fit together,
    return ``SPLIT_SIZES``. Return None if the operations agree.
    """
    for what, aspect in ASPECTS:
        if len({aspect(operation) for operation in operations}) > 1:
            return what
    return SPLIT_SIZES if _unequal_splits(operations) else None


def _unequal_splits(operations: list[Operation]) -> list[tuple[Operation, Operation]]:
    """Return the pairs (source, target) of an all-to-all whose split sizes differ.

    The number of elements that the source sends to the target is not the number that the target
    expects. Return [] for other collectives. Operations that do not list split sizes are left out.
    """
    told = [
        operation
        for operation in operations
        if operation.kind == "all_to_all"
        and len(operation.sent) == len(operation.received) == len(operation.group)
    ]
    return [
        (source, target)
        for source in told
        for target in told
        if _sent_to(source, target) != _expected_from(source, target)
    ]


def _sent_to(source: Operation, target: Operation) -> int:
    return source.sent[source.group.index(target.rank)]


def _expected_from(source: Operation, target: Operation) -> int:
    return target.received[target.group.index(source.rank)]


def _about_splits(operations: list[Operation]) -> str:
    """Return a sentence about the first two ranks of an all-to-all whose split sizes differ."""
    source, target = _unequal_splits(operations)[0]
    sent, expected = _sent_to(source, target), _expected_from(source, target)
    return (
        f"Rank {source.rank} sends {sent} element{'s' * (sent != 1)} to rank {target.rank}, but"
        f" rank {target.rank} expects {expected}."
    )
