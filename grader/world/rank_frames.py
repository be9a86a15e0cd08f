"""Reads the frames that the ranks of a world send to the judge.

A rank may send anything, so each frame is checked before it gets into the report.
"""

from collections.abc import Callable

from grader.wire import frames
from grader.wire.event_reader import read_event
from grader.wire.events import Event, Mark, Operation, Program, Progress, weight
from grader.world import call_outcomes
from grader.world.held_ranks import HeldRanks
from grader.world.limits import Limits
from grader.world.progress_judge import ProgressJudge
from grader.world.report import Raised, RankReport, Returned, WorldReport


class RankFrames:
    """Takes the frames of the ranks, and writes them into the report of their world.

    It also passes their content on to ``ProgressJudge`` and ``HeldRanks``. ``trace`` says whether
    the ranks may also send data for a timeline. ``send_go(rank, call)`` lets a rank begin a call.
    """

    def __init__(
        self,
        report: WorldReport,
        limits: Limits,
        trace: bool,
        judge: ProgressJudge,
        held: HeldRanks,
        send_go: Callable[[int, int], None],
    ) -> None:
        self.report, self.limits, self.trace = report, limits, trace
        self.judge, self.held, self.send_go = judge, held, send_go
        self.events = 0  # the weight of all events
        self.sent = [0] * report.size  # for each rank, the weight of all its frames, in bytes
        self.imported: set[str] = set()  # modules of ``frames.HEAVY`` that ranks had to import

    def read(self, rank: RankReport, frame: frames.Frame) -> None:
        """Write the content of a rank's frame into the report.

        Raises FrameError if the rank may not send this frame, or if the frame cannot be read.
        """
        self.judge.on_frame()
        self.sent[rank.rank] += frame.weight
        if self.sent[rank.rank] > self.limits.sent_bytes:
            raise frames.FrameError(
                f"more than {self.limits.sent_bytes >> 20} MiB in all calls together"
            )
        call = frame.meta.get("call", 0)
        if not frames.is_whole(call) or not 0 <= call < len(self.report.calls):
            raise frames.FrameError("a frame for a call that does not exist")
        content = self._content(rank, frame)
        if isinstance(content, Event):
            self._on_event(rank, content)
        elif isinstance(content, Returned | Raised):
            self._settle(rank, call, content)
        elif frame.kind == frames.HELD:
            self.held.hold(rank, call)
        elif frame.kind == frames.DONE:
            if len(rank.outcomes) < len(self.report.calls):
                raise frames.FrameError("a DONE frame before all calls were made")
            rank.done, rank.may_go_on = True, frame.meta.get("may_go_on") is True
            self.imported |= {name for name in frames.HEAVY if frame.meta.get(name) is True}
        else:
            raise frames.FrameError("a frame that a rank may not send to the judge")

    def _content(self, rank: RankReport, frame: frames.Frame) -> Event | Returned | Raised | None:
        """Return the content of a frame as typed data; None if the frame has no content.

        Raises FrameError if the content cannot be read.
        """
        try:
            if frame.kind == frames.EVENT:
                return read_event(rank.rank, frame.meta, self.report.size)
            if frame.kind == frames.RETURNED:
                return call_outcomes.read_returned(frame)
            if frame.kind == frames.RAISED:
                return call_outcomes.read_raised(frame.meta)
        except frames.FrameError:
            raise
        except Exception as error:
            raise frames.FrameError(
                f"a frame that cannot be read ({type(error).__name__})"
            ) from error
        return None

    def _on_event(self, rank: RankReport, event: Event) -> None:
        if isinstance(event, Progress | Program) and not self.trace:
            raise frames.FrameError("the progress of an operation, which was not requested")
        if isinstance(event, Mark) and self.held.leaves_out_its_delay(
            rank.rank, event.call, event.name
        ):
            raise frames.FrameError("a mark that the rank was not yet allowed to pass")
        if isinstance(event, Operation) and self.held.leaves_out_its_delay(rank.rank, event.call):
            raise frames.FrameError("an operation of a call that was not yet allowed to begin")
        self.events += weight(event)
        if self.events > self.limits.events:
            raise frames.FrameError(
                f"more than {self.limits.events} events of all ranks together, such as operations"
                " (a large event counts several times)"
            )
        rank.trail.append(event)
        if isinstance(event, Mark):
            self.held.on_mark(event)
            if event.name == frames.CALL_BEGAN:
                self.judge.on_call_began(rank.rank)

    def _settle(self, rank: RankReport, call: int, outcome: Returned | Raised) -> None:
        if call in rank.outcomes:
            raise frames.FrameError("a second result for one call")
        if self.held.leaves_out_its_delay(rank.rank, call):
            raise frames.FrameError("a result of a call that was not yet allowed to begin")
        rank.outcomes[call] = outcome
        self.judge.on_outcome()
        has_raised = isinstance(outcome, Raised)
        if self.report.calls[call].may_raise if has_raised else not self.report.on_hub:
            self.send_go(rank.rank, call + 1)
        self.held.release()
