"""Stores the answers that a rank still expects, and the bytes of sends that the rank owes."""

from dataclasses import dataclass, field
from typing import Any

from grader.hub.matching import Posted
from grader.wire.frames import FrameError, NotAllowed, is_whole

# How many operations and questions of one rank may be unanswered at a time. The time to match
# operations grows with the square of their number.
MAX_UNANSWERED = 2000


@dataclass
class Outstanding:
    """Stores the answers that one rank still expects, and the bytes that it still has to send.

    A rank first announces a send, and then sends the bytes. Until the bytes reach the hub, the rank
    owes them, and the hub withholds all answers to this rank. Otherwise the rank could announce all
    its sends, receive everything, and only then compute the data of its sends.
    """

    # the numbers of the operations and questions that are not answered yet
    unanswered: set[int] = field(default_factory=set)
    owed: dict[int, Posted] = field(default_factory=dict)  # the sends whose bytes are missing
    withheld: list[tuple[dict, bytes]] = field(default_factory=list)
    operation_bytes: int = 0  # the bytes of operations that are not answered yet

    def expect(self, number: Any, received: int) -> None:
        """Record that the rank expects an answer with this number.

        ``received`` is the number of the rank's sends that were received, but are not answered yet.
        These sends wait for no other rank, and do not count towards ``MAX_UNANSWERED``. Raises
        FrameError if ``number`` is not an integer, if the rank already expects an answer with this
        number, or if it expects too many answers.
        """
        if not is_whole(number) or number in self.unanswered:
            raise FrameError("an operation of no known form")
        if len(self.unanswered) - received >= MAX_UNANSWERED:
            raise NotAllowed(f"more than {MAX_UNANSWERED} operations that wait for other ranks")
        self.unanswered.add(number)

    def take_owed(self, number: Any) -> Posted:
        """Remove and return the send whose bytes have come.

        Raises FrameError if no send waits for these bytes.
        """
        posted = self.owed.pop(number, None) if is_whole(number) else None
        if posted is None:
            raise FrameError("bytes that no operation has announced")
        return posted

    def withhold_if_owing(self, meta: dict, blob: bytes) -> bool:
        """Withhold an answer if the rank owes bytes. Return whether it is withheld."""
        if self.owed:
            self.withheld.append((meta, blob))
        return bool(self.owed)

    def take_withheld(self) -> list[tuple[dict, bytes]]:
        """Return the withheld answers if the rank owes nothing any more; else an empty list."""
        if self.owed:
            return []
        taken, self.withheld = self.withheld, []
        return taken

    def is_empty(self) -> bool:
        """Return whether the rank expects no answer and owes no bytes."""
        return not self.unanswered and not self.owed

    def held_bytes(self) -> int:
        """Return how many bytes the hub holds because of this rank."""
        return self.operation_bytes + sum(len(blob) for _, blob in self.withheld)
