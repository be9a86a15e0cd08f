"""Receives the operations that ranks issue, and the bytes of their sends."""

from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from grader.hub.answers import Answers
from grader.hub.calls import Calls
from grader.hub.covert_limits import CovertLimits
from grader.hub.frames_to_judge import FramesToJudge
from grader.hub.growth_reports import GrowthReports
from grader.hub.matching import Matching, Posted, attach_bytes, bytes_due, check
from grader.wire import combine, frames, world_messages
from grader.wire.event_reader import read_operation


class Operations:
    """Validates the operations that ranks issue, reports them to the judge, and posts them.

    This object serves the calls of one check. When a send's bytes have come, it calls
    ``report_growth`` with the rank.
    """

    def __init__(
        self,
        calls: Calls,
        matching: Matching,
        answers: Answers,
        growth_reports: GrowthReports,
        report_growth: Callable[[int], None],
        to_judge: FramesToJudge,
        tell: Callable[[dict], None],
    ) -> None:
        self.calls, self.matching, self.answers = calls, matching, answers
        self.growth_reports, self.report_growth = growth_reports, report_growth
        self.to_judge, self.tell = to_judge, tell
        self.covert_limits = CovertLimits()

    def on_operation(self, rank: int, frame: frames.Frame) -> None:
        """Take an operation, tell the judge of it, and answer all operations that it completes.

        Raises FrameError if the frame holds no valid operation.
        """
        content, number, batch = (frame.meta.get(name) for name in ("operation", "number", "batch"))
        if (
            not isinstance(content, dict)
            or not frames.is_whole(number)
            or not (batch is None or frames.is_whole(batch))
        ):
            raise frames.FrameError("an operation of no known form")
        call, content = self.calls.current(rank), content | {"at": monotonic_ns()}
        operation = read_operation(rank, call, content, self.calls.size)
        pieces: Any = frame.meta.get("pieces")  # checked by ``check``
        posted = Posted(number, operation, pieces, bytes_due(operation), batch=batch)
        check(posted)
        self.covert_limits.require_few(operation)
        self.growth_reports.on_operation(operation)
        self.answers.note(posted, self.calls.options_of(rank, call))
        if operation.kind != "send":
            self._attach_bytes(posted, frame.blob)
        elif frame.blob:
            raise frames.FrameError("a send that brings its bytes too early")
        self.answers.expect(rank, number)
        self.to_judge.pass_on(rank, frames.EVENT, {"call": call, "operation": content})
        if operation.kind == "send":
            self._note_send(rank, number)
        if not posted.is_here:
            self.answers.outstanding[rank].owed[number] = posted
        self.matching.post(posted)

    def _note_send(self, rank: int, number: int) -> None:
        """Record a send. After the last call, report it as not awaited: no wait can follow."""
        call = self.calls.current(rank)
        if self.calls.are_over(rank):
            self.to_judge.mark_unawaited(rank, self.answers.sends[rank].take_place(call))
        else:
            self.answers.sends[rank].note(number, call)

    def on_contents(self, rank: int, frame: frames.Frame) -> None:
        """Take the bytes of a send, and answer the operations that these bytes complete.

        If the hub then waits for no more bytes from this rank, it sends the rank the answers that
        it has held back. Raises FrameError if no send waits for these bytes, or if the send
        announced another number of bytes.
        """
        posted = self.answers.outstanding[rank].take_owed(frame.meta.get("number"))
        self._attach_bytes(posted, frame.blob)
        self.report_growth(rank)
        self.matching.on_bytes(posted)
        self.answers.on_bytes(rank)

    def _attach_bytes(self, posted: Posted, blob: bytes) -> None:
        """Give an operation its bytes. If the call asks for ``squares``, report ``even_powers``."""
        attach_bytes(posted, blob)
        rank, call = posted.rank, posted.operation.call
        self.answers.outstanding[rank].operation_bytes += posted.due
        options = self.calls.options_of(rank, call)
        # Use the dtype that the check gave in ``squares``, and not the one that the rank reports.
        if blob and options and options.squares:
            sums = combine.even_powers(blob, options.squares)
            self.tell({world_messages.SQUARES: [rank, call, *sums]})
