"""Finds out which operations of different ranks belong together.

The trails of the ranks show this (see ``events``), so this module needs no help from gloo or nccl.
These are the rules:

- In each group, the k-th collectives of all ranks belong together.
- For some sends and receives, the hub tells the judge that they belong together: see
  ``hub.matching.Matching.report``.
- Among the other sends and receives, the k-th send on a lane belongs to the k-th receive on this
  lane (see ``lanes``).
- After that, some sends may be left. They belong to receives that accept a message from any rank.
  At each destination, the k-th of these sends, in the order of time, belongs to the k-th of these
  receives.
- A send and a receive of different calls do not belong together if the message does not fit.

The messages to students, the report and the timeline all use this matching.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

from grader.wire.events import Operation, operations, operations_by_key
from grader.wire.lanes import Destination, Lane, destination_of, lane_of


@dataclass(frozen=True)
class Match:
    """Operations of several ranks that form one communication, such as a send and its receive.

    ``absent`` lists the ranks whose operation for this communication is missing. ``is_certain`` is
    False if the match is only a guess, because a receive accepts any source.
    """

    operations: list[Operation]
    absent: list[int]
    is_certain: bool = True

    def message_fits(self) -> bool:
        """Return whether a message has the number of elements and the dtype of its receive.

        Return True if one of the two is missing.
        """
        one, other = self.operations[0], self.operations[-1]
        return (one.elements, one.dtype) == (other.elements, other.dtype)


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


@dataclass(slots=True)
class OnLane:
    """The sends on one lane and the receives on it, each in the order of their rank's trail."""

    sends: list[Operation] = field(default_factory=list)
    receives: list[Operation] = field(default_factory=list)


@dataclass(slots=True)
class AtDestination:
    """The messages with one destination: those on its lanes, and the receives from any rank."""

    lanes: list[OnLane] = field(default_factory=list)
    from_any: list[Operation] = field(default_factory=list)

    def are_certain(self) -> bool:
        """Return whether the matches at this destination are certain, and not only guesses."""
        # A receive from any rank takes the message that arrives first. The trails do not show in
        # which order messages of different ranks arrived, or whether such a receive took a message
        # before a receive that names its source. So if there is a receive from any rank, each match
        # is a guess. The exception: one rank has sent all messages, and no receive names a source.
        # Messages of one rank arrive in the order of its sends.
        if not self.from_any:
            return True
        sources = sum(bool(on_lane.sends) for on_lane in self.lanes)
        return sources == 1 and not any(on_lane.receives for on_lane in self.lanes)

    def sends_left(self) -> list[Operation]:
        """Return the sends that match no receive on their lane, in the order of time."""
        left = [send for own in self.lanes for send in own.sends[len(own.receives) :]]
        return sorted(left, key=lambda send: send.at)


def match(trails: list[list], pairs: Sequence[Sequence[int]] = ()) -> Matches:
    """Match the operations of all ranks, by the rules at the top of this file.

    ``trails`` has the trail of each rank. ``pairs`` lists the sends and receives that belong
    together, as the hub knows: rank and time of the send, rank and time of the receive.
    """
    told = _told_matches(trails, pairs) if pairs else []
    settled = {id(operation) for found in told for operation in found.operations}
    # group and its name → for each collective in order: rank → the rank's operation
    groups: dict[tuple, list[dict[int, Operation]]] = defaultdict(list)
    lanes: dict[Lane, OnLane] = defaultdict(OnLane)
    from_any: dict[Destination, list[Operation]] = defaultdict(list)
    for trail in trails:
        position: dict[tuple, int] = defaultdict(int)
        for operation in operations(trail):
            if id(operation) in settled:
                continue
            if operation.kind == "send":
                lanes[lane_of(operation)].sends.append(operation)
            elif operation.kind == "recv" and operation.peer is not None:
                lanes[lane_of(operation)].receives.append(operation)
            elif operation.kind == "recv":
                from_any[destination_of(operation)].append(operation)
            else:
                key = tuple(operation.group), operation.group_name
                if position[key] == len(groups[key]):
                    groups[key].append({})
                groups[key][position[key]][operation.rank] = operation
                position[key] += 1
    messages = told + _match_messages(lanes, from_any)
    return Matches(
        [_match_collectives(group, of_group) for (group, _), of_group in groups.items()],
        [part for found in messages for part in _without_later_call(found)],
    )


def _match_collectives(
    group: Sequence[int], collectives: list[dict[int, Operation]]
) -> list[Match]:
    """Return a match for each collective of a group. Each dict has the operations by rank."""
    present = [[came[rank] for rank in group if rank in came] for came in collectives]
    absent = [[rank for rank in group if rank not in came] for came in collectives]
    return [Match(*both) for both in zip(present, absent)]


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
        if destination_of(send) == destination_of(receive):
            used |= {id(send), id(receive)}
            found.append(Match([send, receive], []))
    return found


def _match_messages(
    lanes: dict[Lane, OnLane], from_any: dict[Destination, list[Operation]]
) -> list[Match]:
    """Match the messages on each lane, and then, at each destination, the messages that are left.

    ``from_any`` has the receives that accept a message from any rank.
    """
    # A rank may use a new tag for each of fifty thousand messages. Then a search of all lanes for
    # each destination would take long. So group the lanes by destination first.
    destinations: dict[Destination, AtDestination] = defaultdict(AtDestination)
    for lane, on_lane in lanes.items():
        destinations[lane.destination].lanes.append(on_lane)
    for destination, receives in from_any.items():
        destinations[destination].from_any = receives
    are_certain = {destination: there.are_certain() for destination, there in destinations.items()}
    found = []
    for lane, on_lane in lanes.items():
        found += _match_lane(lane, on_lane, are_certain[lane.destination])
    for destination, there in destinations.items():
        found += _match_sends_left(destination, there, are_certain[destination])
    for destination in from_any:
        found += _receives_left(destinations[destination])
    return found


def _match_lane(lane: Lane, on_lane: OnLane, is_certain: bool) -> list[Match]:
    """Match the sends on a lane with the receives that name their source.

    Also return a match for each receive that gets no message, but none for a send that is left.
    """
    sends, receives = on_lane.sends, on_lane.receives
    found = [Match([send, receive], [], is_certain) for send, receive in zip(sends, receives)]
    source = cast(int, lane.source)  # every receive in ``on_lane`` names its source
    return found + [Match([receive], [source]) for receive in receives[len(sends) :]]


def _match_sends_left(
    destination: Destination, there: AtDestination, is_certain: bool
) -> list[Match]:
    """Match the sends that are left at a destination with the receives from any rank there.

    Also return a match for each send that no receive takes.
    """
    sends, receives = there.sends_left(), there.from_any
    found = [Match([send, receive], [], is_certain) for send, receive in zip(sends, receives)]
    target = cast(int, destination.target)
    return found + [Match([send], [target]) for send in sends[len(receives) :]]


def _receives_left(there: AtDestination) -> list[Match]:
    """Return a match for each receive from any rank that gets no message."""
    receives = there.from_any[len(there.sends_left()) :]
    return [
        Match([receive], [rank for rank in receive.group if rank != receive.rank])
        for receive in receives
    ]


def _without_later_call(found: Match) -> list[Match]:
    """Return [found], or two matches if the calls differ and the message does not fit its receive.

    In the second case one rank is in a later call than the other, so the earlier call has one send
    or one receive too many. The two operations do not belong together. Each of the two matches has
    one operation, which waits for the other rank.
    """
    first, last = found.operations[0], found.operations[-1]
    if first.call == last.call or not found.is_certain or found.message_fits():
        return [found]
    return [Match([first], [last.rank]), Match([last], [first.rank])]
