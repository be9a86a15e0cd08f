"""The hub receives every operation of every rank of a world, matches it, and answers it.

The hub runs in the supervisor. Nothing else connects the ranks, so the hub knows which rank
communicated what, when, and in which order. It reports this to the judge. It also passes on all
other frames between the judge and each rank. The hub does not trust the frames of a rank.
"""

import selectors
import socket
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from time import monotonic, monotonic_ns
from typing import Any

from grader.hub.connection import Connections
from grader.hub.in_step import Steps
from grader.hub.matching import Matching, Posted, bring, bytes_due, check
from grader.hub.resident import Resident
from grader.hub.sends import Sends
from grader.hub.slow_gathers import SlowGathers
from grader.hub.store_values import MAX_QUESTIONS, Keys
from grader.hub.weighing import Weighing
from grader.wire import combine, frames
from grader.wire.events import Operation, read_operation
from grader.wire.served import Served

# How many bytes of one world this process may hold. These are the bytes of operations that are not
# answered yet, and of answers that ranks have not read yet.
MAX_HELD = 1 << 26
# How many operations and questions of one rank may be unanswered at a time. The time to match
# operations grows with the square of their number.
MAX_UNANSWERED = 2000
# Operations without data could carry a message, too: other ranks learn which group a rank names,
# and in which order its barriers come. In one call, a rank may make 30 groups (``store_values``),
# so it may begin to use this many; and it may start this many collectives that carry no data.
MAX_NEW_GROUPS = MAX_QUESTIONS // 2 + 1  # the group of all ranks counts, too
MAX_EMPTY = 100
MAX_USE_LETTERS = 200  # characters in the name under which a rank uses something
MAX_WAITING_THREADS = 64  # waiting threads that a rank may report
# When the judge finds that the ranks are idle, no frame and no answer may be newer than this. The
# judge does not see all of them.
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
        steps: Steps | None = None,
        size: int | None = None,
        memory: Callable[[int], int] = lambda rank: 0,
        resident: Callable[[int], Resident] = lambda rank: Resident(),
        spent: Callable[[int], int] = lambda rank: 0,
        is_strict: bool = False,
    ) -> None:
        """Set up the hub, and begin to read from the judge.

        Args:
            judges: for each rank the socket to the judge.
            ranks: for each rank the socket to the rank.
            tell: sends the judge a message.
            steps: the rule for messages in step, see ``in_step``; by default it never applies.
            size: how many ranks have calls to make. By default all ranks have calls to make.
            memory: returns the bytes of a rank's memory, or 0 if the system does not say.
            resident: returns a rank's memory in parts, and its peak: see ``Resident``.
            spent: returns the nanoseconds of a rank's processor time, or 0 if the system does not
                say.
            is_strict: whether operations are carried out in nccl's order, see ``strict``.
        """
        self.tell, self.spent, self.is_strict = tell, spent, is_strict
        self.weighing = Weighing(memory, resident)
        self.connections = Connections(judges, ranks)
        self.judges, self.ranks = self.connections.judges, self.connections.ranks
        self.have_begun: set[int] = set()  # the ranks that have begun a call
        self.is_full = False  # whether the judge was told that ``MAX_HELD`` is exceeded
        self.moves = 0  # the number of frames from ranks plus answers to ranks
        self.moved_at = monotonic()  # the time of the last of them
        for rank, judge in enumerate(self.judges):
            self.connections.begin_to_read(judge, self._on_judge, rank)
        self.begin(len(ranks) if size is None else size, steps or Steps())

    def begin(self, size: int, steps: Steps) -> None:
        """Begin the calls of a check on the first ``size`` ranks, and forget earlier operations.

        The other ranks must not send any frame.
        """
        self.size, self.steps = size, steps
        self.matching = Matching(size, steps, self._answer, self.is_strict)
        # by rank and number: the sends whose bytes have not arrived yet
        self.owed: list[dict[int, Posted]] = [{} for _ in range(size)]
        # by rank: the answers that wait until the rank has sent the bytes that it owes
        self.postponed: list[list[tuple]] = [[] for _ in range(size)]
        self.held = [0] * size  # by rank: the bytes of its operations that are not answered yet
        self.sends = [Sends() for _ in range(size)]
        self.ended = [0] * size  # by rank: how many calls have ended
        self.are_made = [False] * size  # by rank: whether all its calls are made
        self.signs_due = [0] * size  # by rank: how many signs to go on the judge still has to send
        # by rank: the numbers of its operations and questions that are not answered yet
        self.unanswered: list[set[int]] = [set() for _ in range(size)]
        # rank → what each of its threads waits for, for the ranks whose threads all wait
        self.waits: dict[int, list] = {}
        # The ranks that waited at a standstill, and have sent nothing since. The hub relied on this
        # when it gave out what it had kept back, or told the judge that held ranks may go on.
        self.believed: set[int] = set()
        # ``waits`` when the judge was last told of the present standstill; None if there is none
        self.told_standstill: dict[int, list] | None = None
        self.passed_on = 0  # the number of frames from ranks that the judge was sent
        # by rank and call: what the judge has handed to the rank
        self.served: list[list[Served]] = [[] for _ in range(size)]
        self.weighing.forget_calls()
        self.issued: Counter[tuple[int, int]] = Counter()  # (rank, call) → its operations so far
        # by rank: (members, name) of each group that it has used
        self.groups: list[set[tuple]] = [set() for _ in range(size)]
        # (rank, call) → how many of these groups are new in this call
        self.new_groups: Counter[tuple[int, int]] = Counter()
        self.empty: Counter[tuple[int, int]] = Counter()  # (rank, call) → collectives without data
        self.keys = Keys()
        self.slow = SlowGathers()

    def is_at_rest(self) -> bool:
        """Return whether every rank waits for new calls, and nothing of its last calls is left.

        Something is left, for example, if a question is unanswered, if bytes are owed, if a frame
        is not written or read completely, or if a socket is closed.
        """
        ends = [*self.judges, *self.ranks]
        wait = all(self.waits.get(rank) == [frames.FOR_INPUTS] for rank in range(self.size))
        left = (
            any(self.unanswered)
            or any(self.owed)
            or any(end.queue or end.reader.buffer for end in ends)
        )
        return wait and not left and not self.is_full and all(end.is_open for end in ends)

    def serve(self) -> None:
        """Serve all sockets that are ready, without blocking.

        If a rank sends a frame that is not allowed, tell the judge, and close the rank's
        connections. Afterwards look for a standstill, and for too much data in this process.
        """
        for end, rank, events in self.connections.ready():
            try:
                if events & selectors.EVENT_WRITE:
                    end.flush()
                if events & selectors.EVENT_READ and end.handle:
                    end.handle(rank)
            except frames.FrameError as error:
                self.tell({"refused": str(error)[:300], "rank": rank})
                self._hang_up(rank)
            except OSError:
                self._hang_up(rank)
            except Exception as error:
                # A rank may send anything. That must not harm another rank, nor make the judge
                # fail. But an error with a frame from the judge is a fault of the grader.
                if end is not self.ranks[rank]:
                    raise
                self.tell(
                    {
                        "refused": f"a frame that cannot be handled ({type(error).__name__})",
                        "rank": rank,
                    }
                )
                self._hang_up(rank)
        self.connections.choose_events()
        self._look_for_standstill()
        self._look_at_memory()

    def moves_until_now(self) -> int:
        """Serve once more, then return the number of frames from ranks plus answers to ranks."""
        self.serve()
        return self.moves

    def _note_move(self) -> None:
        self.moves, self.moved_at = self.moves + 1, monotonic()

    def give_to_idle(self) -> int:
        """Give ranks the results of slow all-gathers that they wait for; return how many it gave.

        Call this when the judge has found that the ranks are idle: no thread of any rank wants to
        run. If a frame or an answer is newer than what the judge has seen, give nothing.
        """
        self.serve()
        if monotonic() - self.moved_at < QUIET_SECONDS:
            return 0
        return self._give_early(self.slow.awaited)

    def _give_early(self, waits: Mapping[int, Collection]) -> int:
        """Give results that ``SlowGathers.lift`` gives up, tell the judge, and return their number.

        ``waits`` says what each rank waits for.
        """
        awaited = self.slow.lift(waits)
        for posted, blob, place in awaited:
            told = [posted.rank, posted.operation.call, place, monotonic_ns()]
            self.tell({"awaited_early": told})
            self._give(posted, blob)
        return len(awaited)

    def _look_at_memory(self) -> None:
        """Tell the judge, once, if this process holds more than ``MAX_HELD`` bytes of the ranks.

        This happens if no rank receives what others send, or if ranks do not read their answers.
        """
        unread = sum(end.queued for end in self.ranks) + sum(
            len(blob) for own in self.postponed for _, blob in own
        )
        if sum(self.held) + unread > MAX_HELD and not self.is_full:
            self.is_full = True
            self.tell(
                {"limit": f"had more than {MAX_HELD >> 20} MiB of sent data that no rank received"}
            )

    def _look_for_standstill(self) -> None:
        """Tell the judge, once, if all ranks wait and no rank can continue.

        If messages are withheld at a standstill, and the judge holds no rank, do not tell the judge
        of the standstill. Deliver these messages instead: see ``in_step``. Likewise give the
        results of slow all-gathers that ranks wait for: see ``slow_gathers``.
        """
        stands = len(self.waits) == self.size and all(
            end.is_open for end in self.ranks[: self.size]
        )
        # The judge first has to get the frames that the ranks sent before they waited.
        stands = stands and not any(end.queue for end in self.judges)
        # the ranks that wait for the judge's sign to go on
        held = [rank for rank, waits in self.waits.items() if frames.FOR_GO in waits]
        if stands and self.steps.withheld and not held:
            self.believed = set(self.waits)
            for rank, call, number in self.steps.lift():
                self.tell({"not_sent_on": [rank, call, number, monotonic_ns()]})
            self.matching.match_all()
        elif stands and not held and self._give_early(waiting := dict(self.waits)):
            self.believed = set(waiting)
        elif stands and self.told_standstill != self.waits:
            self.told_standstill = dict(self.waits)
            if held:  # the judge will let them go on
                self.believed = set(self.waits)
            self.tell({"standstill": held, "frames": self.passed_on} | self.matching.held_back())
        elif not stands:
            self.told_standstill = None

    def fileno(self) -> int:
        return self.connections.fileno()

    def _hang_up(self, rank: int) -> None:
        """Close both sockets of a rank, the one to the rank and the one to the judge.

        The operations that the rank has posted are kept, because other ranks may wait for them.
        """
        self.connections.hang_up(rank)

    # ——— what arrives

    def _on_judge(self, rank: int) -> None:
        data = self.judges[rank].socket.recv(1 << 18)
        if not data:
            raise ConnectionResetError
        for frame in self.judges[rank].reader.feed(data):
            # This is the judge's first frame. Read from the rank from now on, and not before.
            if self.ranks[rank].reader.nonce is None:
                self.ranks[rank].reader.nonce = self.judges[rank].reader.nonce
                self.connections.begin_to_read(self.ranks[rank], self._on_rank, rank)
            if frame.kind == frames.GO:
                self.signs_due[rank] -= 1
            self.waits.pop(rank, None)
            if frame.kind == frames.INPUTS:
                self.served[rank] = [Served(rank, given) for given in frame.meta.pop("served", ())]
            packed = self.judges[rank].reader.pack(frame.kind, frame.meta, frame.blob)
            self.ranks[rank].write(packed)

    def _on_rank(self, rank: int) -> None:
        data = self.ranks[rank].socket.recv(1 << 18)
        if not data:
            raise ConnectionResetError
        if rank >= self.size:
            raise frames.FrameError("a frame from a rank that has no call to make")
        for frame in self.ranks[rank].reader.feed(data):
            self._look_before_calls(rank, frame)
            self._note_move()
            if rank in self.believed and rank in self.waits:
                raise frames.FrameError(
                    "a rank said that all its threads wait, but then it sent a frame"
                )
            self.waits.pop(rank, None)  # a rank that has sent a frame does not wait any more
            self.believed.discard(rank)
            if frame.kind == frames.WAIT:
                self._on_wait(rank, frame.meta)
            elif frame.kind == frames.AWAIT:
                if not frames.is_whole(number := frame.meta.get("number")):
                    raise frames.FrameError("a wait of no known form")
                self._on_await(rank, number)
            elif frame.kind == frames.OPERATION:
                posted = self._read(rank, frame)
                if not posted.is_here:
                    self.owed[rank][posted.number] = posted
                self.matching.post(posted)
            elif frame.kind == frames.CONTENTS:
                self._on_contents(rank, frame)
            elif frame.kind == frames.USE:
                self._on_use(rank, frame.meta)
            elif frame.kind == frames.STORE:
                self._expect(rank, frame.meta.get("number"))
                for asker, number, answer in self.keys.ask(rank, self._call_of(rank), frame.meta):
                    self._write(asker, {"to": number, **answer})
            elif frame.kind == frames.EVENT:
                if "operation" in frame.meta:
                    raise frames.FrameError("an operation reported to the judge, not to the hub")
                if self._serves(rank, frame.meta.get("mark")):
                    raise frames.FrameError(
                        "a mark for a given function that the rank did not call"
                    )
                # The hub sets the call and the time itself, because a rank's word is no evidence.
                self._pass_on(
                    rank,
                    frame.kind,
                    frame.meta | {"call": self._call_of(rank), "at": monotonic_ns()},
                )
            elif frame.kind in (frames.RETURNED, frames.RAISED):
                self._on_end_of_call(rank, frame)
            else:
                self.signs_due[rank] += frame.kind == frames.HELD
                self.are_made[rank] |= frame.kind == frames.DONE
                self._pass_on(rank, frame.kind, frame.meta, frame.blob)

    def _on_end_of_call(self, rank: int, frame: frames.Frame) -> None:
        """Pass on how a call of a rank has ended, and give the rank all answers that were kept.

        If the call returned, first mark the sends that the rank did not wait for.
        """
        shown = frame.meta.pop("receipts", None)
        receipts = set(filter(frames.is_whole, shown)) if isinstance(shown, list) else set()
        never_awaited, kept = self.sends[rank].on_end(receipts)
        if frame.kind == frames.RETURNED:
            self._weigh(rank, has_returned=True)
            for place in never_awaited:
                self._mark_send(rank, place)
        self._pass_on(rank, frame.kind, frame.meta, frame.blob)
        self.ended[rank] += 1
        self.signs_due[rank] += frame.kind == frames.RAISED
        for number in kept:
            self._hand_over(rank, {"to": number})
        for posted, blob in self.slow.on_end(rank):
            self._give(posted, blob)

    def _mark_send(self, rank: int, place: int) -> None:
        """Tell the judge that a rank did not wait for a send of its current call."""
        mark = f"{frames.NEVER_AWAITED} send {place}"
        told = {"call": self._call_of(rank), "mark": mark, "at": monotonic_ns()}
        self._pass_on(rank, frames.EVENT, told)

    def _look_before_calls(self, rank: int, frame: frames.Frame) -> None:
        """Note how much memory a rank has before its first call, which begins with an event."""
        if rank in self.have_begun:
            return
        if frame.kind == frames.EVENT:
            self.have_begun.add(rank)
        is_alone = any(given.weighs for given in self.served[rank])
        self.weighing.before_calls(rank, frame.kind == frames.STORE, is_alone)

    def _call_of(self, rank: int) -> int:
        """Return the number of the call that a rank is in, whatever the rank itself says.

        Everything that the rank does after its last call counts as a part of that call.
        """
        return min(self.ended[rank], max(len(self.steps.towards) - 1, 0))

    def _expect(self, rank: int, number: Any) -> None:
        """Record that a rank expects an answer with this number.

        Raises FrameError if ``number`` is no whole number, if the rank already expects an answer
        with this number, or if the rank expects too many answers.
        """
        if not frames.is_whole(number) or number in self.unanswered[rank]:
            raise frames.FrameError("an operation of no known form")
        # Do not count sends that were received: they no longer wait for another rank.
        if len(self.unanswered[rank]) - len(self.sends[rank].received) >= MAX_UNANSWERED:
            raise frames.FrameError(f"more than {MAX_UNANSWERED} operations that wait for others")
        self.unanswered[rank].add(number)

    def _weigh(self, rank: int, has_returned: bool = False) -> None:
        """Tell the judge by how many bytes a rank's memory has grown, if the check asks for it.

        Tell the judge only if the growth is a new maximum in the call. Also tell how many
        operations the rank had issued in the call by then. If the rank has returned from the call,
        tell the growth only if the rank was not weighed in the call before.
        """
        given, call = self._given(rank), self._call_of(rank)
        if given and given.weighs:
            weigh = self.weighing.at_the_end if has_returned else self.weighing.new_most
            if (grown := weigh(rank, call, given.weighs)) is not None:
                self.tell({"grown": [rank, call, self.issued[rank, call], grown]})

    def _given(self, rank: int) -> Served | None:
        """Return what the judge has handed to a rank for its current call, or None."""
        call = self._call_of(rank)
        return self.served[rank][call] if call < len(self.served[rank]) else None

    def _serves(self, rank: int, name: object) -> Served | None:
        """Return what a rank was given for its current call, if it can be used under this ``name``.

        Otherwise return None.
        """
        given = self._given(rank)
        return given if given and isinstance(name, str) and given.has(name) else None

    def _on_use(self, rank: int, meta: dict) -> None:
        """Tell the judge that a rank uses something that it was given, and answer the rank.

        Raises FrameError if the rank was given nothing that can be used under this name.
        """
        name, number = meta.get("use"), meta.get("number")
        given = self._serves(rank, name)
        if given is None or not frames.is_text(name, MAX_USE_LETTERS):
            raise frames.FrameError("a use of something that the rank was not given")
        self._expect(rank, number)
        self._pass_on(
            rank, frames.EVENT, {"call": self._call_of(rank), "mark": name, "at": monotonic_ns()}
        )
        for posted, blob in self.slow.on_use(rank):
            self._give(posted, blob)
        # The rank waits for the answer now. So the time does not include what it computes later.
        if name == frames.PAUSE:
            self.tell({"spent": [rank, self._call_of(rank), self.spent(rank)]})
        try:
            self._write(rank, {"to": number, "gives": given.use(name)})
        except LookupError:  # more runs than there are answers
            self._write(rank, {"to": number})

    def _on_wait(self, rank: int, meta: dict) -> None:
        """Record that all threads of a rank wait, unless one has got its answer meanwhile.

        If the frame also holds steps of the rank's program, pass the steps on to the judge. Raises
        FrameError if the frame is not of the agreed form, or if the rank waits for its next calls
        before it has made the current ones.
        """
        waits = meta.get("for")
        if not isinstance(waits, list) or len(waits) > MAX_WAITING_THREADS:
            raise frames.FrameError("a wait of no known form")
        known = [frames.is_whole(key) or key in frames.FOR_JUDGE for key in waits]
        if not all(known):
            raise frames.FrameError("a wait of no known form")
        if frames.FOR_INPUTS in waits and not self.are_made[rank]:
            raise frames.FrameError("a wait for the next calls before the current ones are made")
        for key in waits:
            self._on_await(rank, key)
        # If the judge has sent the sign to go on already, the sign is on its way to the rank.
        is_under_way = frames.FOR_GO in waits and self.signs_due[rank] <= 0
        is_answered = any(
            frames.is_whole(key) and key not in self.unanswered[rank] for key in waits
        )
        if not is_answered and not is_under_way:
            self.waits[rank] = waits
        if "steps" in meta:
            self._pass_on(
                rank,
                frames.EVENT,
                {"call": self._call_of(rank), "steps": meta["steps"], "at": monotonic_ns()},
            )

    def _on_await(self, rank: int, key: object) -> None:
        """Record that a thread of a rank waits; if it waits for a send, give a kept answer."""
        if not frames.is_whole(key):
            return
        self.slow.on_await(rank, key)
        if self.sends[rank].on_wait(key):
            self._hand_over(rank, {"to": key, **self.sends[rank].receipt(key)})

    def _pass_on(self, rank: int, kind: bytes, meta: dict, blob: bytes = b"") -> None:
        self.passed_on += 1
        self.judges[rank].write(self.ranks[rank].reader.pack(kind, meta, blob))

    def _read(self, rank: int, frame: frames.Frame) -> Posted:
        """Return the operation in a frame, and tell the judge of this operation.

        Raises FrameError if the frame holds no valid operation.
        """
        content, number, batch = (frame.meta.get(name) for name in ("operation", "number", "batch"))
        if (
            not isinstance(content, dict)
            or not frames.is_whole(number)
            or not (batch is None or frames.is_whole(batch))
        ):
            raise frames.FrameError("an operation of no known form")
        call, content = self._call_of(rank), content | {"at": monotonic_ns()}
        operation = read_operation(rank, call, content, self.size)
        pieces: Any = frame.meta.get("pieces")  # checked by ``check``
        posted = Posted(number, operation, pieces, bytes_due(operation), batch=batch)
        check(posted)
        self._require_few_signals(operation, call)
        # Weighing takes time, so do not weigh at a receive. A send before or after it is enough.
        given = self._given(rank)
        if operation.kind != "recv":
            self._weigh(rank)
        self.issued[rank, call] += 1
        if given and given.slow_gathers:
            self.slow.note(posted)
        if operation.kind != "send":
            self._bring(posted, frame.blob)
        elif frame.blob:
            raise frames.FrameError("a send that brings its bytes too early")
        self._expect(rank, number)
        self._pass_on(rank, frames.EVENT, {"call": call, "operation": content})
        if operation.kind == "send":
            self._note_send(rank, number)
        return posted

    def _require_few_signals(self, operation: Operation, call: int) -> None:
        """Raise FrameError if a rank could send much by operations without data.

        See ``MAX_NEW_GROUPS``.
        """
        key, group = (operation.rank, call), (tuple(operation.group), operation.group_name)
        self.new_groups[key] += group not in self.groups[operation.rank]
        self.groups[operation.rank].add(group)
        if self.new_groups[key] > MAX_NEW_GROUPS:
            raise frames.FrameError(
                f"operations in more than {MAX_NEW_GROUPS} new process groups in one call: make"
                " each group once"
            )
        is_message = operation.kind in ("send", "recv")
        self.empty[key] += not is_message and not any((*operation.sent, *operation.received))
        if self.empty[key] > MAX_EMPTY:
            raise frames.FrameError(
                f"more than {MAX_EMPTY} barriers and other collectives without data in one call"
            )

    def _note_send(self, rank: int, number: int) -> None:
        """Record a send. After the last call, mark it at once, because it is too late to wait."""
        call = self._call_of(rank)
        if 0 < len(self.steps.towards) <= self.ended[rank]:
            self._mark_send(rank, self.sends[rank].count(call))
        else:
            self.sends[rank].note(number, call)

    def _on_contents(self, rank: int, frame: frames.Frame) -> None:
        """Take the bytes of a send, and answer the operations that these bytes complete.

        If the rank owes no more bytes, send it the answers that were postponed. Otherwise they stay
        postponed. Raises FrameError if no send waits for these bytes, or if a send announced more
        or fewer bytes.
        """
        number = frame.meta.get("number")
        posted = self.owed[rank].pop(number, None) if frames.is_whole(number) else None
        if posted is None:
            raise frames.FrameError("bytes that no operation has announced")
        self._bring(posted, frame.blob)
        self.matching.meet(posted)
        if not self.owed[rank]:
            answers, self.postponed[rank] = self.postponed[rank], []
            for meta, blob in answers:
                self._write(rank, meta, blob)

    def _bring(self, posted: Posted, blob: bytes) -> None:
        """Give an operation its bytes. If the judge asks, tell it the entries' sum of squares."""
        bring(posted, blob)
        rank, call = posted.rank, posted.operation.call
        self.held[rank] += posted.due
        dtype = self.served[rank][call].squares if call < len(self.served[rank]) else ""
        if blob and dtype:  # the rank's word for the dtype does not count
            total = combine.squares(blob, dtype)
            self.tell({"squares": [rank, call, total]})

    def _answer(self, posted: Posted, blob: bytes, **more: int) -> None:
        """Answer an operation, unless its result has to wait: see ``slow_gathers``."""
        if not self.slow.keeps(posted, blob):
            self._give(posted, blob, **more)

    def _give(self, posted: Posted, blob: bytes, **more: int) -> None:
        """Answer an operation. Keep the answer of a send until its rank waits: see ``sends``."""
        self.held[posted.rank] -= len(posted.blob)
        sends = self.sends[posted.rank]
        if not sends.keeps(posted.number):
            meta = {"to": posted.number, **more, **sends.receipt(posted.number)}
            self._hand_over(posted.rank, meta, blob)

    def _hand_over(self, rank: int, meta: dict, blob: bytes = b"") -> None:
        """Write an answer, or postpone it while the rank owes the bytes of a send.

        Without this delay, a rank could announce all its sends, receive everything, and only then
        compute the contents of its sends.
        """
        if self.owed[rank]:
            self.postponed[rank].append((meta, blob))
        else:
            self._write(rank, meta, blob)

    def _write(self, rank: int, meta: dict, blob: bytes = b"") -> None:
        end = self.ranks[rank]
        self._note_move()
        self.unanswered[rank].discard(meta["to"])
        if meta["to"] in self.waits.get(rank, ()):
            del self.waits[rank]
        if not end.is_open:
            return
        try:
            for part in end.reader.parts(frames.ANSWER, meta, blob):
                end.write(part)
        except OSError:
            self._hang_up(rank)
