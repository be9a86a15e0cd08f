"""Finds operations that were used wrongly: nobody waited for them, or their memory was overwritten.

If the values of a call with such an operation are right, they may be right only by luck.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from grader.wire.events import Mark, Operation, operations
from grader.wire.frames import (
    IN_IMPORT,
    LEFT_OPEN,
    NEVER_AWAITED,
    OVERLAPPING,
    OVERWRITTEN,
    UNFILLED,
)
from grader.world.report import WorldReport

# At the end of a call, a rank adds one mark of this form to its trail for each hazard. The mark
# says what is wrong, and names the kind and the number of the operation. The operations of each
# kind are numbered from 0.
HAZARD_MARK = re.compile(rf"({NEVER_AWAITED}|{OVERWRITTEN}|{OVERLAPPING}) ([a-z_]+) ([0-9]{{1,5}})")
LEFT_OPEN_MARK = re.compile(rf"({LEFT_OPEN}) ([a-z_]+) ([0-9]{{1,5}})")


@dataclass(frozen=True)
class Hazard:
    """An operation of a rank, and what is wrong with it.

    ``what`` is ``NEVER_AWAITED``, ``OVERWRITTEN`` or ``OVERLAPPING``. ``is_paired`` is True if the
    operation is a send or a receive, and a rank issued its partner in the same call.
    """

    what: str
    operation: Operation
    is_paired: bool

    def __str__(self) -> str:
        operation, rank = self.operation, f"rank {self.operation.rank}"
        if self.what == OVERWRITTEN:
            return (
                f"{rank} overwrites the tensor of the {operation} before it has waited for this"
                " operation. Until wait() returns, the tensor is in use: do not write to it or"
                " receive into it."
            )
        if self.what == OVERLAPPING:
            return (
                f"{rank} calls the {operation} with an output that shares memory with its input."
                " The operation may overwrite entries before it has sent them, as gloo does, so the"
                " results may be wrong. Use another tensor for the output."
            )
        starts = f"{rank} starts the {operation}, but never waits for it."
        if operation.kind == "send" and not self.is_paired:
            return (
                f"{rank} starts the {operation}, but rank {operation.peer} does not receive this"
                f" message in the same call, and {rank} never waits for the send. Remove this send,"
                " or add the missing receive and call wait() on the Work of the send."
            )
        if operation.kind == "recv" and not self.is_paired:
            sends = (
                "no rank sends"
                if operation.peer is None
                else f"rank {operation.peer} does not send"
            )
            return (
                f"{rank} starts the {operation}, but {sends} this message in the same call, and"
                f" {rank} never waits for the receive. Remove this receive, or add the missing send"
                " and call wait() on the Work of the receive."
            )
        if operation.kind == "recv":
            return (
                f"{starts} irecv returns immediately. Before you use the tensor, call wait() on the"
                " Work of this receive."
            )
        if operation.kind == "send":
            return (
                f"{starts} isend returns immediately. Before your function ends, call wait() on the"
                " Work of this send. Until then the tensor is in use."
            )
        return (
            f"{starts} async_op=True returns immediately, as functional collectives always do. Call"
            " wait() on the Work or the pending tensor that the call returns, before you use or"
            " return the result."
        )

    @property
    def is_luck(self) -> bool:
        """Return whether a call with this hazard can give the right values only by luck."""
        return self.what != NEVER_AWAITED or self.operation.kind in ("send", "recv")


def hazards(report: WorldReport, call: int) -> list[Hazard]:
    """Return the hazards of a call.

    Hazards of receives come first, because a student sees their effect first.
    """
    paired = {
        id(operation)
        for match in report.matching().messages
        if not match.absent and {operation.call for operation in match.operations} == {call}
        for operation in match.operations
    }
    found = [
        Hazard(what, operation, id(operation) in paired)
        for trail in report.trails
        for what, operation in _marked(trail, call, HAZARD_MARK)
    ]
    return sorted(found, key=lambda hazard: hazard.operation.kind != "recv")


def left_open(report: WorldReport, call: int, rank: int) -> list[Operation]:
    """Return the first few operations whose tensors a rank may have read before they were filled.

    The line that issued such an operation did not wait for it, but a later line may have waited.
    """
    marked = _marked(report.ranks[rank].trail, call, LEFT_OPEN_MARK)
    return [operation for _, operation in marked]


def _marked(trail: list, call: int, form: re.Pattern) -> Iterator[tuple[str, Operation]]:
    """Yield a pair for each mark of this form in a call: what is wrong, and the operation."""
    for mark in trail:
        if isinstance(mark, Mark) and mark.call == call and (read := form.fullmatch(mark.name)):
            what, kind, number = read.groups()
            of_this_kind = [o for o in operations(trail, call) if o.kind == kind]
            if int(number) < len(of_this_kind):
                yield what, of_this_kind[int(number)]


def in_import(report: WorldReport, call: int) -> str | None:
    """Return a sentence about an operation that a rank issued while it imported the student's file.

    Return None if there is no such operation.
    """
    for trail in report.trails:
        is_marked = any(
            isinstance(event, Mark) and event.call == call and event.name == IN_IMPORT
            for event in trail
        )
        if is_marked and (issued := operations(trail, call)):
            name = f"{report.calls[call].function.partition('.')[0]}.py"
            return (
                f"{name} communicates while it is imported: the {issued[0]}. Code outside of"
                " functions runs at every import, before each check. Remove this call"
            )
    return None


def read_early(value: Sequence[np.ndarray], unawaited: Sequence[Operation]) -> str | None:
    """Return a sentence if a rank seems to have read a tensor before it was filled; else None.

    ``value`` holds the arrays that the rank returned. ``unawaited`` holds the operations that the
    rank did not wait for immediately: see ``left_open``. A tensor that an operation will fill
    contains nan, or ``UNFILLED`` for integers, until the rank has waited for the operation. Such an
    entry in ``value`` does not prove an early read: a program may compute nan from filled tensors.
    """
    filling = [operation for operation in unawaited if operation.received]
    if any(_holds_nan(array) for array in value):
        kept = "nan"
    elif any(_holds_unfilled(array) for array in value):
        kept = str(UNFILLED)
    else:
        return None
    if not filling:
        return None
    computed = " Or did your code itself compute nan, by 0/0 or inf − inf?" * (kept == "nan")
    at = f"the {filling[0]}" if len(filling) == 1 else f"the {filling[0]}, or a later operation"
    return (
        f"a tensor was read before it was filled. The grader keeps {kept} in this tensor until the"
        f" wait() of the operation that fills the tensor has returned. Look at {at}. Before you use"
        " the tensor, call wait() on the Work that the operation returned."
        f"{computed}"
    )


def _holds_nan(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" and bool(np.isnan(array).any())


def _holds_unfilled(array: np.ndarray) -> bool:
    return array.dtype.kind in "iu" and bool((array == UNFILLED).any())
