"""Limits how many bytes of a world's data the hub holds."""

from collections.abc import Callable

from grader.hub.connection import Connections
from grader.wire import world_messages

# The most bytes that this process may hold for one world. Two kinds of bytes count: those of
# unanswered operations, and those of answers that ranks have not read yet.
MAX_HELD_BYTES = 1 << 26


class HeldBytes:
    """Tells the judge, one time, if the hub holds more than ``MAX_HELD_BYTES`` for the ranks.

    The hub holds so many bytes if sends are not received, or if ranks do not read their answers.
    """

    def __init__(self, connections: Connections, tell: Callable[[dict], None]) -> None:
        self.connections, self.tell = connections, tell
        self.are_too_many = False  # whether the judge has been told that there are too many bytes

    def look(self, of_operations: int) -> None:
        """Tell the judge if there are too many bytes.

        ``of_operations`` counts the bytes of unanswered operations and of withheld answers.
        """
        # First compute an upper bound, which takes little time. The bound counts a result once for
        # each rank that gets the result.
        unread = sum(end.queued for end in self.connections.ranks)
        if self.are_too_many or of_operations + unread <= MAX_HELD_BYTES:
            return
        if of_operations + self.connections.unread_bytes() > MAX_HELD_BYTES:
            self.are_too_many = True
            limit = (
                f"had more than {MAX_HELD_BYTES >> 20} MiB of data under way at a time (messages"
                " that no rank had received, or collectives that had not ended)"
            )
            self.tell({world_messages.LIMIT: limit})
