"""Sends the judge frames that come from ranks, and events that the hub itself reports."""

from time import monotonic_ns

from grader.hub.calls import Calls
from grader.hub.connection import Connections
from grader.wire import frames


class FramesToJudge:
    """Writes frames to the judge in the calls of one check, and counts them."""

    def __init__(self, connections: Connections, calls: Calls) -> None:
        self.connections, self.calls = connections, calls
        self.count = 0  # how many frames were written

    def pass_on(self, rank: int, kind: bytes, meta: dict, blob: bytes = b"") -> None:
        """Write a frame as if it came from a rank."""
        self.count += 1
        packed = self.connections.ranks[rank].reader.pack(kind, meta, blob)
        self.connections.judges[rank].write(packed)

    def tell_event(self, rank: int, event: dict) -> None:
        """Report an event of a rank.

        The hub itself sets the call and the time, because it does not trust the rank.
        """
        now = {"call": self.calls.current(rank), "at": monotonic_ns()}
        self.pass_on(rank, frames.EVENT, event | now)

    def mark_unawaited(self, rank: int, place: int) -> None:
        """Report that a rank did not wait for a send of its current call."""
        self.tell_event(rank, {"mark": f"{frames.NEVER_AWAITED} send {place}"})
