"""Names where a message goes, and where it comes from.

Only sends and receives have a *destination* and a *lane*. Collectives have neither.
"""

from typing import NamedTuple

from grader.wire.events import Operation


class Destination(NamedTuple):
    """Where a message goes. A send and a receive can match only if their destinations are equal."""

    group: tuple[int, ...]
    group_name: str
    target: int | None  # the rank that receives; None only if a rank reports a send without a peer
    tag: int


class Lane(NamedTuple):
    """Where a message comes from, and where it goes. A send is on the same lane as its receive.

    The only exception is a receive that accepts a message from any rank. The ``source`` of its lane
    is None, and it may match sends on all lanes with the same destination.
    """

    group: tuple[int, ...]
    group_name: str
    source: int | None  # the rank that sends
    target: int | None  # as in ``Destination``
    tag: int

    @property
    def destination(self) -> Destination:
        return Destination(self.group, self.group_name, self.target, self.tag)


def destination_of(operation: Operation) -> Destination:
    """Return the destination of the message that a send or a receive is about."""
    target = operation.peer if operation.kind == "send" else operation.rank
    return Destination(tuple(operation.group), operation.group_name, target, operation.tag)


def lane_of(operation: Operation) -> Lane:
    """Return the lane of a send or a receive."""
    this, peer = operation.rank, operation.peer
    source, target = (this, peer) if operation.kind == "send" else (peer, this)
    return Lane(tuple(operation.group), operation.group_name, source, target, operation.tag)
