"""Do the ranks agree on what they communicate? Where do they first disagree, and who waits for whom?

gloo is silent about much of this: ranks that reduce 4 and 6 elements, or sum on one and max on the other, get wrong numbers
and no error. The trails tell, without any help from the backend:

- the k-th collective of a group must be the same on all its ranks: kind, elements, dtype, reduction, root;
- the k-th send from i to j in a group with a tag meets the k-th receive there: elements and dtype must agree.
"""

from collections import defaultdict
from dataclasses import dataclass

from grader.wire.events import Operation, lane, operations


@dataclass(frozen=True)
class Disagreement:
    """Operations that met and do not fit: one of each rank concerned, and in what they differ."""

    what: str
    sides: list[Operation]

    def __str__(self) -> str:
        groups = defaultdict(list)
        for side in self.sides:
            groups[str(side)].append(side.rank)
        lines = [f"{_ranks(ranks)}: {text}" for text, ranks in groups.items()]
        return f"The ranks disagree about {self.what}:\n" + "\n".join(f"    {line}" for line in lines)


@dataclass(frozen=True)
class Waiting:
    """An operation that some ranks have issued, and that others never joined."""

    operation: Operation
    absent: list[int]


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else "ranks " + ", ".join(map(str, ranks))


Lanes = dict[tuple, tuple[list[Operation], list[Operation]]]


def messages(trails: list[list]) -> tuple[Lanes, list[Operation]]:
    """Return the sends and the receives of each lane, in their order, and the receives from any rank."""
    lanes: Lanes = defaultdict(lambda: ([], []))
    anonymous: list[Operation] = []
    for trail in trails:
        for operation in operations(trail):
            if operation.kind == "send":
                lanes[lane(operation)][0].append(operation)
            elif operation.kind == "recv" and operation.peer is None:
                anonymous.append(operation)
            elif operation.kind == "recv":
                lanes[lane(operation)][1].append(operation)
    return lanes, anonymous


def examine(trails: list[list]) -> tuple[list[Disagreement], list[Waiting]]:
    """All disagreements, the earliest first, and all operations that are still waiting for someone."""
    disagreements: list[Disagreement] = []
    waiting: list[Waiting] = []
    collectives: dict[tuple, dict[int, list[Operation]]] = defaultdict(lambda: defaultdict(list))
    lanes, anonymous = messages(trails)
    for trail in trails:
        for operation in operations(trail):
            if operation.kind not in ("send", "recv"):
                collectives[tuple(operation.group), operation.group_name][operation.rank].append(operation)
    for (group, _), of_rank in collectives.items():
        for position in range(max(map(len, of_rank.values()))):
            present = [of_rank[rank][position] for rank in group if position < len(of_rank[rank])]
            first = min(operation.call for operation in present)
            if gone_on := [operation.rank for operation in present if operation.call > first]:
                waiting += [Waiting(o, gone_on) for o in present if o.call == first]
                break  # those have returned without taking part in it
            if what := difference(present):
                disagreements.append(Disagreement(what, present))
                break  # whatever follows in this group is out of step
            if absent := [rank for rank in group if position >= len(of_rank[rank])]:
                waiting += [Waiting(operation, absent) for operation in present]
    # By where a message goes to and its tag: a rank may have used a tag for each of fifty thousand.
    takers_of: dict[tuple, list[Operation]] = defaultdict(list)
    sources_of: dict[tuple, list[int]] = defaultdict(list)
    for receive in anonymous:
        takers_of[_landing(lane(receive))].append(receive)
    for key, (sent, _) in lanes.items():
        if sent:
            sources_of[_landing(key)].append(key[2])
    matched: set[int] = set()
    for key, (sends, receives) in lanes.items():
        _, _, source, target, _ = key
        takers = [r for r in takers_of[_landing(key)] if id(r) not in matched]
        sources = sources_of[_landing(key)]
        # Receives from any rank mixed with others, or with several senders: nobody can tell which took which.
        if not takers or not receives and len(sources) == 1:
            for send, receive in zip(sends, receives or takers):
                if (send.elements, send.dtype) != (receive.elements, receive.dtype):
                    disagreements.append(Disagreement("what is sent", [send, receive]))
        taken = min(len(takers), max(len(sends) - len(receives), 0))
        matched |= {id(receive) for receive in takers[:taken]}
        waiting += [Waiting(send, [target]) for send in sends[len(receives) + taken :]]
        waiting += [Waiting(receive, [source]) for receive in receives[len(sends) :]]
    waiting += [Waiting(r, [other for other in r.group if other != r.rank]) for r in anonymous if id(r) not in matched]
    disagreements.sort(key=lambda d: max(side.at for side in d.sides))
    return disagreements, waiting


def _landing(lane: tuple) -> tuple:
    """Return where the messages of a lane arrive, whoever sends them."""
    group, name, _, target, tag = lane
    return group, name, target, tag


def difference(operations: list[Operation]) -> str | None:
    """In what operations that meet in one collective differ, in a student's words."""
    aspects = {
        "which operation this is": lambda o: o.kind,
        "how many elements there are": lambda o: None if o.kind in ("all_to_all", "barrier") else o.elements,
        "the dtype": lambda o: o.dtype,
        "the reduction": lambda o: o.reduction,
        "the root": lambda o: o.root,
    }
    for what, aspect in aspects.items():
        if len({aspect(operation) for operation in operations}) > 1:
            return what
    return None
