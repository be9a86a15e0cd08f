"""The hub receives every operation of every rank of a world, matches it, and answers it.

The hub runs in the supervisor. Nothing else connects the ranks, so the hub knows which rank
communicated what, when, and in which order. The hub reports this to the judge. It also passes on
all other frames between the judge and each rank. The hub does not trust the frames of a rank.
"""

import selectors
import socket
from collections.abc import Callable
from time import monotonic, monotonic_ns

from grader.hub.answers import Answers
from grader.hub.calls import Calls
from grader.hub.connection import Connections
from grader.hub.frames_to_judge import FramesToJudge
from grader.hub.growth_reports import GrowthReports
from grader.hub.held_bytes import HeldBytes
from grader.hub.in_step import InStep
from grader.hub.matching import Matching
from grader.hub.operations import Operations
from grader.hub.process_usage import UsageSource
from grader.hub.releases import Releases
from grader.hub.store_values import StoreValues
from grader.hub.waits import Waits
from grader.wire import frames, world_messages
from grader.wire.callbacks import CallOptions

MAX_USE_LETTERS = 200  # characters in the name of a USE frame
ENDED = " ended"  # a USE whose name ends with this reports that a judge's function has ended
# The hub gives withheld results to idle ranks only if its last move (``Hub.moves``) is at least
# this old. The judge does not see all moves. So the judge may believe that a rank is idle although
# the rank has just got an answer.
QUIET_SECONDS = 0.25


class Hub:
    """The network of one world.

    ``judges[r]`` and ``ranks[r]`` are the connections to the judge and to rank r. The first
    ``size`` ranks have calls to make.
    """

    def __init__(
        self,
        judges: list[socket.socket],
        ranks: list[socket.socket],
        tell: Callable[[dict], None],
        measures: UsageSource,
        in_step: InStep | None = None,
        size: int | None = None,
        is_strict: bool = False,
    ) -> None:
        """Set up the hub, and begin to read from the judge.

        Args:
            judges: for each rank the socket to the judge.
            ranks: for each rank the socket to the rank.
            tell: sends the judge a message.
            measures: measures how much memory and processor time a rank uses.
            in_step: the rule that withholds messages, see ``in_step``; by default it never applies.
            size: how many ranks have calls to make. By default all ranks have calls to make.
            is_strict: whether operations are carried out in nccl's order, see ``strict``.
        """
        self.tell, self.measures, self.is_strict = tell, measures, is_strict
        self.connections = Connections(judges, ranks)
        self.judges, self.ranks = self.connections.judges, self.connections.ranks
        self.growth_reports = GrowthReports(measures, self.ranks, tell)
        self.held_bytes = HeldBytes(self.connections, tell)
        # The number of moves: reads from ranks, answers, and writes of data that had to wait. Each
        # part of a large message counts, because a busy machine may need seconds for all parts.
        self.moves = 0
        self.moved_at = monotonic()  # the time of the last move
        for rank, judge in enumerate(self.judges):
            self.connections.begin_to_read(judge, self._on_judge, rank)
        self.begin(len(ranks) if size is None else size, in_step or InStep())

    def begin(self, size: int, in_step: InStep) -> None:
        """Begin the calls of a check on the first ``size`` ranks, and forget earlier operations.

        The other ranks must not send any frame.
        """
        self.size, self.in_step = size, in_step
        self.answers = Answers(
            self.connections,
            size,
            self._on_answer,
            self._report_growth,
            lambda rank: self.releases.deliver_if_at_rest(rank),  # ``Releases`` is made below
        )
        self.matching = Matching(size, in_step, self.answers.answer, self.is_strict)
        self.calls = Calls(size, in_step)
        self.waits = Waits()
        self.releases = Releases(self.answers, self.waits, self.calls, self.measures, self.tell)
        self.to_judge = FramesToJudge(self.connections, self.calls)
        self.growth_reports.begin(self.calls, self.answers.outstanding)
        self.operations = Operations(
            self.calls,
            self.matching,
            self.answers,
            self.growth_reports,
            self._report_growth,
            self.to_judge,
            self.tell,
        )
        self.store_values = StoreValues()
        # The kind of a rank's frame → its handler. ``_on_other`` handles all other kinds.
        self.handlers: dict[bytes, Callable[[int, frames.Frame], None]] = {
            frames.WAIT: self._on_wait,
            frames.AWAIT: self._on_await,
            frames.OPERATION: self.operations.on_operation,
            frames.CONTENTS: self.operations.on_contents,
            frames.USE: self._on_use,
            frames.STORE: self._on_store,
            frames.EVENT: self._on_event,
            frames.RETURNED: self._on_end_of_call,
            frames.RAISED: self._on_end_of_call,
        }

    def is_at_rest(self) -> bool:
        """Return whether every rank waits for new calls, and its last calls left nothing behind.

        Examples of what may be left: an unanswered question, bytes that a rank owes, a frame that
        is only partly written or read, a closed socket.
        """
        ends = [*self.judges, *self.ranks]
        nothing_is_left = self.answers.are_empty() and not any(
            end.queue or end.reader.buffer for end in ends
        )
        return (
            self.waits.are_for_inputs(self.size)
            and nothing_is_left
            and not self.held_bytes.are_too_many
            and all(end.is_open for end in ends)
        )

    def serve(self) -> None:
        """Serve all sockets that are ready, without blocking.

        If a rank sends a frame that is not allowed, tell the judge, and close the rank's
        connections. Afterwards look for a standstill, and check how many bytes the hub holds.
        """
        for end, rank, events in self.connections.ready():
            try:
                if events & selectors.EVENT_WRITE:
                    self._note_move()
                    end.flush()
                if events & selectors.EVENT_READ and end.handle:
                    end.handle(rank)
            except frames.FrameError as error:
                self._refuse(rank, str(error)[:300], isinstance(error, frames.NotAllowed))
            except OSError:
                self.connections.hang_up(rank)
            except Exception as error:
                # A rank may send anything. Its frames must not harm another rank or make the judge
                # fail. But an error with a frame from the judge is a fault of the grader.
                if end is not self.ranks[rank]:
                    raise
                self._refuse(rank, f"a frame that cannot be handled ({type(error).__name__})")
        self._look_for_standstill()
        self.held_bytes.look(self.answers.held_bytes())
        self.connections.choose_events()  # at the end, because a standstill may lead to answers

    def moves_until_now(self) -> int:
        """Serve all sockets that are ready once more, then return ``moves``."""
        self.serve()
        return self.moves

    def _note_move(self) -> None:
        self.moves, self.moved_at = self.moves + 1, monotonic()

    def _on_answer(self, rank: int, number: int) -> None:
        self._note_move()
        self.releases.forget_idle(rank)
        self.waits.on_answer(rank, number)

    def give_to_idle(self) -> int:
        """Give ranks their withheld results and messages. Return how many were given.

        Call this when the judge has found that the ranks are idle: no thread of a rank is runnable.
        If the last move was less than ``QUIET_SECONDS`` ago, give nothing, because the judge may
        not have seen this move yet. See ``Releases.give_to_idle``.
        """
        self.serve()
        if monotonic() - self.moved_at < QUIET_SECONDS:
            return 0
        given = self.releases.give_to_idle()
        self.connections.choose_events()
        return given

    def look(self) -> None:
        """Look at the ranks' memory, and deliver messages that are withheld from idle ranks.

        Call this between operations, and at the latest after ``seconds_to_look``.
        """
        self.growth_reports.between_operations()
        if self.releases.deliver_to_resting():
            self.connections.choose_events()

    def seconds_to_look(self) -> float:
        return min(self.growth_reports.seconds_to_look(), self.releases.seconds_to_look())

    def stop_measuring_busy_ranks(self) -> None:
        """Stop measuring ranks that do not come to rest, and deliver their withheld messages.

        Call this again and again. See ``awaited_receives``.
        """
        self.releases.stop_measuring_busy_ranks()
        self.connections.choose_events()

    def _look_for_standstill(self) -> None:
        """Tell the judge of a standstill: all ranks wait, and no rank can continue.

        The judge is told of each standstill only one time. If messages are withheld, and no rank
        waits for a GO frame of the judge, this is no standstill: deliver the messages, and do not
        tell the judge (see ``in_step``). In the same way, give waiting ranks the results of
        slow all-gathers: see ``slow_gathers``.
        """
        waits = self.waits
        stands = len(waits.by_rank) == self.size and all(
            end.is_open for end in self.ranks[: self.size]
        )
        # The judge first has to get the frames that the ranks sent before they waited.
        stands = stands and not any(end.queue for end in self.judges)
        held_ranks = waits.held_ranks()
        if not stands:
            waits.told = None
        elif self.in_step.withheld and not held_ranks:
            waits.believe()
            for rank, call, number in self.in_step.lift():
                self.tell({world_messages.SENT_ON_LATE: [rank, call, number, monotonic_ns()]})
            self.matching.match_all()
        elif not held_ranks and self.releases.give_slow_results(waiting := dict(waits.by_rank)):
            waits.believed = set(waiting)
        elif waits.told != waits.by_rank:
            waits.told = dict(waits.by_rank)
            if held_ranks:  # the judge will let them go on
                waits.believe()
            told = {world_messages.STANDSTILL: held_ranks, "frames": self.to_judge.count}
            self.tell(told | self.matching.report())

    def fileno(self) -> int:
        return self.connections.fileno()

    def _refuse(self, rank: int, words: str, not_allowed: bool = False) -> None:
        """Tell the judge why a rank's frames are not accepted, and close the rank's connections.

        The operations that the rank has posted are kept, because other ranks may wait for them.
        """
        flag = {"not_allowed": True} if not_allowed else {}
        self.tell({world_messages.REFUSED: words, "rank": rank} | flag)
        self.connections.hang_up(rank)

    # ——— handlers of the frames that arrive

    def _on_judge(self, rank: int) -> None:
        data = self.judges[rank].socket.recv(1 << 18)
        if not data:
            raise ConnectionResetError
        for frame in self.judges[rank].reader.feed(data):
            # Read from the rank only after the judge's first frame, which brings the nonce.
            if self.ranks[rank].reader.nonce is None:
                self.ranks[rank].reader.nonce = self.judges[rank].reader.nonce
                self.connections.begin_to_read(self.ranks[rank], self._on_rank, rank)
            self.waits.on_judge(rank, frame.kind)
            if frame.kind == frames.INPUTS:
                options = [CallOptions(rank, given) for given in frame.meta.pop("served", ())]
                self.calls.note_options(rank, options)
            packed = self.judges[rank].reader.pack(frame.kind, frame.meta, frame.blob)
            self.ranks[rank].write(packed)

    def _on_rank(self, rank: int) -> None:
        data = self.ranks[rank].socket.recv(1 << 18)
        if not data:
            raise ConnectionResetError
        self._note_move()
        self.releases.forget_idle(rank)
        if rank >= self.size:
            raise frames.FrameError("a frame from a rank that has no call to make")
        for frame in self.ranks[rank].reader.feed(data):
            self.growth_reports.before_calls(rank, frame)
            self.waits.on_frame(rank, frame.kind)
            self.handlers.get(frame.kind, self._on_other)(rank, frame)

    def _on_other(self, rank: int, frame: frames.Frame) -> None:
        """Pass on a frame that is only for the judge. Raises FrameError for an ANSWER frame."""
        if frame.kind == frames.ANSWER:
            raise frames.FrameError("an answer from a rank, which only the hub may give")
        self.to_judge.pass_on(rank, frame.kind, frame.meta, frame.blob)

    def _on_store(self, rank: int, frame: frames.Frame) -> None:
        """Answer a rank's question to the store, and earlier questions that now have an answer."""
        self.answers.expect(rank, frame.meta.get("number"))
        call = self.calls.current(rank)
        for asker, number, answer in self.store_values.ask(rank, call, frame.meta):
            self.answers.write(asker, {"to": number, **answer})

    def _on_event(self, rank: int, frame: frames.Frame) -> None:
        """Pass on an event. Raises FrameError if the rank may not report such an event itself."""
        if "operation" in frame.meta:
            raise frames.FrameError("an operation reported to the judge, not to the hub")
        if self.calls.options_that_serve(rank, frame.meta.get("mark")):
            raise frames.FrameError("a mark for a function of the judge that the rank did not call")
        self.to_judge.tell_event(rank, frame.meta)

    def _on_end_of_call(self, rank: int, frame: frames.Frame) -> None:
        """Pass on the end of a rank's call, and write the answers withheld from the rank.

        If the call returned, first mark the sends that the rank did not wait for.
        """
        shown = frame.meta.pop("receipts", None)
        receipts = set(filter(frames.is_whole, shown)) if isinstance(shown, list) else set()
        never_awaited, withheld = self.answers.sends[rank].on_end(receipts)
        if frame.kind == frames.RETURNED:
            self.growth_reports.on_return(rank)
            for place in never_awaited:
                self.to_judge.mark_unawaited(rank, place)
        self.to_judge.pass_on(rank, frame.kind, frame.meta, frame.blob)
        self.calls.ended[rank] += 1
        self.answers.on_end(rank, withheld)

    def _on_use(self, rank: int, frame: frames.Frame) -> None:
        """Tell the judge that a rank uses one of the judge's functions, and answer the rank.

        Raises FrameError if the judge provides no function of this name in the current call.
        """
        name, number = frame.meta.get("use"), frame.meta.get("number")
        options = self.calls.options_that_serve(rank, name)
        if options is None or not frames.is_text(name, MAX_USE_LETTERS):
            raise frames.FrameError("a use of something that the rank was not given")
        self.answers.expect(rank, number)
        if name != frames.SEALING_KEY:  # student code does not ask for the key
            self.to_judge.tell_event(rank, {"mark": name})
        # Only the first end of a probe counts. If the same probe ends again, this does not show
        # that the rank has computed another layer.
        if name.endswith(ENDED) and not options.uses[name]:
            self.answers.on_use(rank)
        # The rank waits for the answer now. So the measured time does not include later computing.
        if name == frames.PAUSE:
            self.releases.tell_spent(world_messages.SPENT, rank)
        try:
            self.answers.write(rank, {"to": number, "gives": options.use(name)})
        except LookupError:  # the rank asks for more runs than the check has
            self.answers.write(rank, {"to": number})

    def _on_wait(self, rank: int, frame: frames.Frame) -> None:
        """Record that all threads of a rank wait. Record nothing if one of them can already go on.

        Write the answers that were withheld until this wait. If the frame also holds steps of the
        rank's program, pass the steps on to the judge. Raises FrameError if the frame is not
        allowed: see ``Waits.read``.
        """
        waits = self.waits.read(rank, frame.meta.get("for"))
        for key in filter(frames.is_whole, waits):
            self.answers.on_await(rank, key)
        self.waits.note(rank, waits, self.answers.outstanding[rank].unanswered)
        self.releases.deliver_if_at_rest(rank)
        if "steps" in frame.meta:
            self.to_judge.tell_event(rank, {"steps": frame.meta["steps"]})

    def _on_await(self, rank: int, frame: frames.Frame) -> None:
        """Record that one thread of a rank waits for an operation."""
        if not frames.is_whole(number := frame.meta.get("number")):
            raise frames.FrameError("a wait of no known form")
        self.answers.on_await(rank, number)
        self.releases.deliver_if_at_rest(rank)

    def _report_growth(self, rank: int) -> None:
        """Report the growth of a rank's memory if the hub holds many more bytes for it."""
        try:
            self.growth_reports.on_network(rank)
        except frames.FrameError as error:  # the frame that led here may be another rank's
            self._refuse(rank, str(error))
        except OSError:  # the rank has just ended
            self.connections.hang_up(rank)
