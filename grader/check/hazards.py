"""Finds operations that nobody waited for, or whose memory was overwritten before the wait.

If the values are right all the same, they may be right by luck.
"""

import re
from dataclasses import dataclass

from grader.wire.events import Mark, Operation, operations
from grader.wire.frames import NEVER_AWAITED, OVERWRITTEN
from grader.world.report import WorldReport

# A rank leaves such marks at the end of a call: what is wrong, the kind of the operation, and its
# number among the operations of this kind, from 0.
MARK = re.compile(rf"({NEVER_AWAITED}|{OVERWRITTEN}) ([a-z_]+) ([0-9]{{1,5}})")


@dataclass(frozen=True)
class Hazard:
    """An operation of a rank, and what is wrong with it: ``NEVER_AWAITED`` or ``OVERWRITTEN``."""

    what: str
    operation: Operation

    def __str__(self) -> str:
        operation, rank = self.operation, f"rank {self.operation.rank}"
        if self.what == OVERWRITTEN:
            return (
                f"{rank} overwrites the tensor of the {operation} before it has waited for it."
                " Until wait() returns, it is in use."
            )
        starts = f"{rank} starts the {operation}, and never waits for it."
        if operation.kind == "recv":
            return (
                f"{starts} irecv returns at once: call wait() on what it returns before you use the"
                " tensor."
            )
        if operation.kind == "send":
            return (
                f"{starts} isend returns at once: call wait() on what it returns before you return."
                " Until then the tensor is in use."
            )
        return (
            f"{starts} async_op=True returns at once: call wait() on what it returns before you use"
            " the tensor."
        )

    @property
    def is_luck(self) -> bool:
        """Return whether values that are right are right by luck only."""
        return self.what == OVERWRITTEN or self.operation.kind in ("send", "recv")


def hazards(report: WorldReport, call: int) -> list[Hazard]:
    """Return the hazards of a call, receives first because their effect is seen first."""
    found = []
    for trail in report.trails:
        own = operations(trail, call)
        for mark in trail:
            if isinstance(mark, Mark) and mark.call == call and (read := MARK.fullmatch(mark.name)):
                what, kind, number = read.groups()
                of_this_kind = [operation for operation in own if operation.kind == kind]
                if int(number) < len(of_this_kind):
                    found.append(Hazard(what, of_this_kind[int(number)]))
    return sorted(found, key=lambda hazard: hazard.operation.kind != "recv")
