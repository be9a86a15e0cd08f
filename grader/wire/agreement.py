"""Finds out whether the ranks agree on what they communicate, and who waits for whom.

gloo leaves many disagreements unreported. For example, one rank may reduce 4 elements and another
6, or one may use sum and another max. Then the ranks get wrong numbers and no error. This module
finds disagreements in the trails of the ranks (see ``events``). It needs no help from gloo or nccl.
It uses two rules:

- The k-th collective of a group must have the same kind, number of elements, dtype, reduction and
  root on all ranks of the group. In an all-to-all, the number of elements may differ. But the
  number that rank i sends to rank j must be the number that rank j expects from rank i.
- Among the messages from rank i to rank j with the same group and tag, the k-th send belongs to the
  k-th receive. Both must have the same number of elements and the same dtype. A receive may accept
  a message from any rank. Only the hub knows which send such a receive has taken. The hub tells the
  judge (see ``hub.matching.Matching.report``).

The messages to students, the report and the timeline all use this matching.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from grader.wire.events import (
    GroupMade,
    Operation,
    groups_made,
    lane,
    operations,
    operations_by_key,
)


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


ELEMENTS = "how many elements there are"  # a value of ``Disagreement.what``
SPLIT_SIZES = "the split sizes"  # a value of ``Disagreement.what``, only for an all-to-all
MAKE_ALL = "All ranks must make all groups in the same order, also groups that they are not in."


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks))


@dataclass(frozen=True)
class Match:
    """Operations of several ranks that form one communication, such as a send and its receive.

    ``absent`` lists the ranks whose operation for this communication is missing. ``is_certain`` is
    False if the match is only a guess, because a receive accepts any source.
    """

    operations: list[Operation]
    absent: list[int]
    is_certain: bool = True


@dataclass(frozen=True)
class Matches:
    """All communications of the ranks: the collectives of each group in order, and the messages."""

    collectives: list[list[Match]]
    messages: list[Match]

    def __iter__(self) -> Iterator[Match]:
        for of_group in self.collectives:
            yield from of_group
        yield from self.messages

    def guessed_ranks(self) -> set[int]:
        """Return the ranks with an operation whose match is only a guess."""
        guesses = [found for found in self.messages if not found.is_certain]
        return {operation.rank for guess in guesses for operation in guess.operations}


def match(trails: list[list], pairs: Sequence[Sequence[int]] = ()) -> Matches:
    """Match the operations of all ranks.

    ``trails`` has the trail of each rank. In a group, the k-th collectives of all ranks belong
    together. For some sends and receives, the hub knows that they belong together. ``pairs`` lists
    these pairs: rank and time of the send, rank and time of the receive. Among the other
    operations, the k-th send on a lane (see ``lane``) belongs to the k-th receive on this lane.
    After that, some sends may be left. They belong to receives that accept any source. At each
    destination, the k-th of these sends, in the order of time, belongs to the k-th of these
    receives. A send and a receive of different calls do not belong together if the message does
    not fit.
    """
    told = _told_matches(trails, pairs) if pairs else []
    settled = {id(operation) for found in told for operation in found.operations}
    groups: dict[tuple, list[dict[int, Operation]]] = defaultdict(list)
    lanes: dict[tuple, tuple[list[Operation], list[Operation]]] = defaultdict(lambda: ([], []))
    from_any: list[Operation] = []
    for trail in trails:
        position: dict[tuple, int] = defaultdict(int)
        for operation in operations(trail):
            if id(operation) in settled:
                continue
            if operation.kind == "send":
                lanes[lane(operation)][0].append(operation)
            elif operation.kind != "recv":
                key = tuple(operation.group), operation.group_name
                if position[key] == len(groups[key]):
                    groups[key].append({})
                groups[key][position[key]][operation.rank] = operation
                position[key] += 1
            elif operation.peer is None:
                from_any.append(operation)
            else:
                lanes[lane(operation)][1].append(operation)
    collectives = []
    for (group, _), of_group in groups.items():
        present = [[came[rank] for rank in group if rank in came] for came in of_group]
        absent = [[rank for rank in group if rank not in came] for came in of_group]
        collectives.append([Match(*both) for both in zip(present, absent)])
    messages = told + _match_messages(lanes, from_any)
    return Matches(collectives, [part for found in messages for part in _without_later_call(found)])


def _without_later_call(found: Match) -> list[Match]:
    """Return [found], or two matches if the calls differ and the message does not fit its receive.

    In the second case one rank is in a later call than the other, so the earlier call has one send
    or one receive too many. The two operations do not belong together. Each of the two matches has
    one operation, which waits for the other rank.
    """
    sides = found.operations
    fits = len({(side.elements, side.dtype) for side in sides}) == 1
    if fits or not found.is_certain or len({side.call for side in sides}) == 1:
        return [found]
    return [Match([side], [other.rank]) for side, other in zip(sides, reversed(sides))]


def _told_matches(trails: list[list], pairs: Sequence[Sequence[int]]) -> list[Match]:
    """Return a match for each of these pairs, see ``match``.

    Leave out a pair in three cases: one of the operations has not arrived yet, the operations are
    not a send and a receive that may take it, or one of them is already in another pair.
    """
    issued = operations_by_key(trails)
    found, used = [], set[int]()
    for from_rank, sent_at, to_rank, received_at in pairs:
        send, receive = issued.get((from_rank, sent_at)), issued.get((to_rank, received_at))
        if send is None or receive is None or used & {id(send), id(receive)}:
            continue
        if (send.kind, receive.kind) != ("send", "recv") or receive.peer not in (None, send.rank):
            continue
        if lane_destination(lane(send)) == lane_destination(lane(receive)):
            used |= {id(send), id(receive)}
            found.append(Match([send, receive], []))
    return found


def _match_messages(
    lanes: dict[tuple, tuple[list[Operation], list[Operation]]], from_any: list[Operation]
) -> list[Match]:
    # The keys of these tables are destinations: see ``lane_destination``. A rank may use a new tag
    # for each of fifty thousand messages. Then a search of all lanes for each destination would
    # take long.
    takers: dict[tuple, list[Operation]] = defaultdict(list)
    sources: dict[tuple, set[int]] = defaultdict(set)
    left: dict[tuple, list[Operation]] = defaultdict(list)
    for receive in from_any:
        takers[lane_destination(lane(receive))].append(receive)
    for key, (sends, _) in lanes.items():
        if sends:
            sources[lane_destination(key)].add(key[2])
    found = []
    for key, (sends, receives) in lanes.items():
        is_certain = not takers[lane_destination(key)]
        found += [Match([send, receive], [], is_certain) for send, receive in zip(sends, receives)]
        found += [Match([receive], [key[2]]) for receive in receives[len(sends) :]]
        left[lane_destination(key)] += sends[len(receives) :]
    # the destinations at which some receives name their source
    mixed = {lane_destination(key) for key, (_, receives) in lanes.items() if receives}
    for destination, sends in left.items():
        sends.sort(key=lambda send: send.at)
        is_certain = len(sources[destination]) == 1 and destination not in mixed
        pairs = zip(sends, takers[destination])
        found += [Match([send, receive], [], is_certain) for send, receive in pairs]
        found += [Match([send], [destination[2]]) for send in sends[len(takers[destination]) :]]
    for destination, receives in takers.items():
        for receive in receives[len(left[destination]) :]:
            found.append(Match([receive], [rank for rank in receive.group if rank != receive.rank]))
    return found


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
        elif (
            found.is_certain and len({(side.elements, side.dtype) for side in found.operations}) > 1
        ):
            disagreements.append(Disagreement("what is sent", found.operations))
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
            return Disagreement("which group they make", present, MAKE_ALL), incomplete
        if absent := [rank for rank, of_rank in enumerate(made) if k >= len(of_rank)]:
            incomplete.append(IncompleteGroup(present, absent))
    return None, incomplete


def lane_destination(lane: tuple) -> tuple:
    """Return the destination of a lane's messages, which is the lane without its source."""
    group, name, _, target, tag = lane
    return group, name, target, tag


def difference(operations: list[Operation]) -> str | None:
    """Return the first property about which a collective's operations disagree, in plain words.

    Return None if the operations agree.
    """
    aspects = {
        "which operation this is": lambda o: o.kind,
        ELEMENTS: lambda o: (None if o.kind in ("all_to_all", "barrier") else o.elements),
        "how large the blocks are": lambda o: (
            tuple(o.sent) if o.kind == "reduce_scatter" and len(set(o.sent)) > 1 else None
        ),
        "the dtype": lambda o: o.dtype,
        "the reduction": lambda o: o.reduction,
        "the root": lambda o: o.root,
    }
    for what, aspect in aspects.items():
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
