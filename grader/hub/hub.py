"""The network of one world: every operation of every rank comes here, is matched, and is answered.
Runs in the supervisor.

Nothing else connects the ranks, so the hub knows who communicated what, when, and in which order.
It tells the judge, and passes on all other frames between the judge and each rank. A rank's frames
are those of a stranger.
"""

import selectors
import socket
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from grader.hub.connection import End
from grader.hub.in_step import Steps
from grader.hub.matching import Matching, Posted, bring, bytes_due, check
from grader.hub.store_values import Keys
from grader.wire import frames
from grader.wire.events import read_operation
from grader.wire.served import Served

MAX_HELD = 1 << 26  # bytes in this process, of a world: posted and not met yet, or not read yet
# operations of a rank that are not answered yet: to match them takes the square of that
MAX_OPEN = 2000
MAX_LETTERS = 200  # of the name of a use
MAX_THREADS = 64  # of a rank, that wait
MAX_QUEUED = 1 << 25  # bytes for the judge, before a rank is read no further


class Hub:
    """``judges[r]`` and ``ranks[r]`` are the sockets to the judge and to rank r.

    The first ``size`` ranks have calls to make.
    """

    def __init__(
        self,
        judges: list[socket.socket],
        ranks: list[socket.socket],
        tell: Callable[[dict], None],
        steps: Steps | None = None,
        size: int | None = None,
        memory: Callable[[int], int] = lambda rank: 0,
        spent: Callable[[int], int] = lambda rank: 0,
        is_strict: bool = False,
    ) -> None:
        """``tell`` sends the judge a message; ``memory`` gives the bytes of a rank's memory,
        ``spent`` the nanoseconds of its processor time; both give 0 where the system does not say.

        Without a ``size`` all ranks have calls to make. ``is_strict``: operations are carried out
        in nccl's order, see ``strict``.
        """
        self.tell, self.memory, self.spent, self.is_strict = tell, memory, spent, is_strict
        # rank → its memory at its first word, before any of the student's code
        self.began_with: dict[int, int] = {}
        self.judges, self.ranks = [End(s) for s in judges], [End(s) for s in ranks]
        self.selector = selectors.DefaultSelector()
        self.is_full = False
        self.moves = 0  # frames from ranks, and answers to them
        for rank, (judge, own) in enumerate(zip(self.judges, self.ranks)):
            for end in (judge, own):
                end.socket.setblocking(False)
            self._register(judge, self._on_judge, rank)
        self.begin(len(ranks) if size is None else size, steps or Steps())

    def begin(self, size: int, steps: Steps) -> None:
        """Carry what the first ``size`` ranks communicate, as if nothing had been before.

        The others are to be silent.
        """
        self.size, self.steps = size, steps
        self.matching = Matching(size, steps, self._answer, self.is_strict)
        # By rank and number: what has not brought its bytes yet.
        self.owed: list[dict[int, Posted]] = [{} for _ in range(size)]
        # answers to ranks that owe bytes
        self.postponed: list[list[tuple]] = [[] for _ in range(size)]
        self.held = [0] * size
        self.ended = [0] * size  # calls
        # the numbers of what each rank asked for
        self.unanswered: list[set[int]] = [set() for _ in range(size)]
        self.waits: dict[int, list] = {}  # rank → what its threads wait for, all of them
        self.told_standstill: dict[int, list] | None = None
        self.passed_on = 0  # frames for the judge
        self.served: list[list[Served]] = [[] for _ in range(size)]  # by rank and call
        # (rank, call) → bytes by which a weighed rank's memory has grown
        self.most: dict[tuple[int, int], int] = {}
        self.keys = Keys()

    def _register(self, end: End, handle: Callable[[int], None], rank: int) -> None:
        end.events = selectors.EVENT_READ
        self.selector.register(end.socket, end.events, (handle, rank))

    def is_at_rest(self) -> bool:
        """Return whether every rank waits for its next calls, with nothing left over."""
        ends = [*self.judges, *self.ranks]
        wait = all(self.waits.get(rank) == [frames.FOR_INPUTS] for rank in range(self.size))
        left = (
            any(self.unanswered)
            or any(self.owed)
            or any(end.queue or end.reader.buffer for end in ends)
        )
        return wait and not left and not self.is_full and all(end.is_open for end in ends)

    def serve(self) -> None:
        """Read and write what can be, without waiting."""
        for key, events in self.selector.select(0):
            handle, rank = key.data
            end = self._end_of(key.fileobj, rank)
            if not end.is_open:
                continue  # closed by what came before it
            try:
                if events & selectors.EVENT_WRITE:
                    end.flush()
                if events & selectors.EVENT_READ:
                    handle(rank)
            except frames.FrameError as error:
                self.tell({"refused": str(error)[:300], "rank": rank})
                self._hang_up(rank)
            except OSError:
                self._hang_up(rank)
            except Exception as error:
                # A rank may say, and be, anything. No other rank is to suffer from that, nor the
                # judge to fail.
                if handle != self._on_rank:
                    raise
                self.tell(
                    {
                        "refused": f"a frame that cannot be handled ({type(error).__name__})",
                        "rank": rank,
                    }
                )
                self._hang_up(rank)
        self._choose_events()
        self._look_for_standstill()
        self._look_at_memory()

    def moves_until_now(self) -> int:
        """Return how many frames have come from ranks, and how many answers have gone to them."""
        self.serve()
        return self.moves

    def _look_at_memory(self) -> None:
        """Tell the judge where what ranks send is not taken, or what they receive is not read."""
        unread = sum(end.queued for end in self.ranks) + sum(
            len(blob) for own in self.postponed for _, blob in own
        )
        if sum(self.held) + unread > MAX_HELD and not self.is_full:
            self.is_full = True
            self.tell({"limit": f"had more than {MAX_HELD >> 20} MiB under way that nobody takes"})

    def _look_for_standstill(self) -> None:
        """Tell the judge, once, when every rank waits for what no rank will do any more."""
        stands = len(self.waits) == self.size and all(
            end.is_open for end in self.ranks[: self.size]
        )
        # what ranks said before that comes first
        stands = stands and not any(end.queue for end in self.judges)
        held = [rank for rank, waits in self.waits.items() if frames.FOR_GO in waits]
        if stands and self.steps.withheld and not held:
            for rank, call, number in self.steps.lift():
                self.tell({"not_sent_on": [rank, call, number, monotonic_ns()]})
            self.matching.match_all()
        elif stands and self.told_standstill != self.waits:
            self.told_standstill = dict(self.waits)
            self.tell({"standstill": held, "frames": self.passed_on} | self.matching.held_back())
        elif not stands:
            self.told_standstill = None

    def fileno(self) -> int:
        return self.selector.fileno()

    def _end_of(self, its: object, rank: int) -> End:
        return self.ranks[rank] if its is self.ranks[rank].socket else self.judges[rank]

    def _choose_events(self) -> None:
        """Wait for room where something is queued; and for a rank's frames only while the judge
        keeps up with them.
        """
        for judge, own in zip(self.judges, self.ranks):
            for end, reads in ((judge, True), (own, judge.queued < MAX_QUEUED)):
                events = selectors.EVENT_WRITE * bool(end.queue) | selectors.EVENT_READ * reads
                # asked for each end, in each round
                if end.events and events not in (0, end.events) and end.is_open:
                    self.selector.modify(end.socket, events, self.selector.get_key(end.socket).data)
                    end.events = events

    def _hang_up(self, rank: int) -> None:
        """Close the sockets of a rank.

        What it has posted stays: others may have been waiting for that.
        """
        for end in (self.ranks[rank], self.judges[rank]):
            if end.is_open:
                if end.socket in self.selector.get_map():
                    self.selector.unregister(end.socket)
                end.is_open = False
                end.socket.close()

    # ——— what arrives

    def _on_judge(self, rank: int) -> None:
        data = self.judges[rank].socket.recv(1 << 18)
        if not data:
            raise ConnectionResetError
        for frame in self.judges[rank].reader.feed(data):
            # the first frame: from now on the rank may speak
            if self.ranks[rank].reader.nonce is None:
                self.ranks[rank].reader.nonce = self.judges[rank].reader.nonce
                self._register(self.ranks[rank], self._on_rank, rank)
            if frame.kind == frames.GO:
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
            if rank not in self.began_with:
                self.began_with[rank] = self.memory(rank)
            self.moves += 1
            self.waits.pop(rank, None)  # whoever says something does not wait
            if frame.kind == frames.WAIT:
                self._on_wait(rank, frame.meta)
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
                    raise frames.FrameError("an operation told to the judge, past the hub")
                if self._serves(rank, frame.meta.get("mark")):
                    raise frames.FrameError(
                        "a mark of what the rank was given to call, and did not call"
                    )
                self._pass_on(
                    rank,
                    frame.kind,
                    frame.meta | {"call": self._call_of(rank), "at": monotonic_ns()},
                )
            else:
                self._pass_on(rank, frame.kind, frame.meta, frame.blob)
                self.ended[rank] += frame.kind in (frames.RETURNED, frames.RAISED)

    def _call_of(self, rank: int) -> int:
        """Return which call a rank is in, whatever it says: what it does after the last one belongs
        to that.
        """
        return min(self.ended[rank], max(len(self.steps.towards) - 1, 0))

    def _expect(self, rank: int, number: Any) -> None:
        """Remember that a rank has asked for an answer.

        Raises FrameError for a number that is none, or is taken.
        """
        if not frames.is_whole(number) or number in self.unanswered[rank]:
            raise frames.FrameError("an operation of no known form")
        if len(self.unanswered[rank]) >= MAX_OPEN:
            raise frames.FrameError(f"more than {MAX_OPEN} operations that wait for others")
        self.unanswered[rank].add(number)

    def _weigh(self, rank: int) -> None:
        """Tell the judge by how much a rank's memory has grown, where a check asks for it."""
        given, call = self._given(rank), self._call_of(rank)
        if not given or not given.weighs or not (memory := self.memory(rank)):
            return
        grown = memory - self.began_with[rank]
        if grown > self.most.get((rank, call), -1):
            self.most[rank, call] = grown
            self.tell({"grown": [rank, call, grown]})

    def _given(self, rank: int) -> Served | None:
        """Return what a rank was given for the call that it is in."""
        call = self._call_of(rank)
        return self.served[rank][call] if call < len(self.served[rank]) else None

    def _serves(self, rank: int, name: object) -> Served | None:
        """Return what a rank was given for the call that it is in, if this is the name of a use of
        it.
        """
        given = self._given(rank)
        return given if given and isinstance(name, str) and given.has(name) else None

    def _on_use(self, rank: int, meta: dict) -> None:
        """Tell the judge of a use of what the rank was given, and answer it."""
        name, number = meta.get("use"), meta.get("number")
        given = self._serves(rank, name)
        if given is None or not frames.is_text(name, MAX_LETTERS):
            raise frames.FrameError("a use of what the rank was not given")
        self._expect(rank, number)
        self._pass_on(
            rank, frames.EVENT, {"call": self._call_of(rank), "mark": name, "at": monotonic_ns()}
        )
        # the rank waits for the answer: what it computes later does not count
        if name == frames.PAUSE:
            self.tell({"spent": [rank, self._call_of(rank), self.spent(rank)]})
        try:
            self._write(rank, {"to": number, "gives": given.use(name)})
        except LookupError:
            self._write(rank, {"to": number})

    def _on_wait(self, rank: int, meta: dict) -> None:
        """Note that all threads of a rank wait: unless one of them has got its answer meanwhile."""
        waits = meta.get("for")
        if not isinstance(waits, list) or len(waits) > MAX_THREADS:
            raise frames.FrameError("a wait of no known form")
        known = [frames.is_whole(key) or key in frames.FOR_JUDGE for key in waits]
        if not all(known):
            raise frames.FrameError("a wait of no known form")
        if not any(frames.is_whole(key) and key not in self.unanswered[rank] for key in waits):
            self.waits[rank] = waits
        if "steps" in meta:
            self._pass_on(
                rank,
                frames.EVENT,
                {"call": self._call_of(rank), "steps": meta["steps"], "at": monotonic_ns()},
            )

    def _pass_on(self, rank: int, kind: bytes, meta: dict, blob: bytes = b"") -> None:
        self.passed_on += 1
        self.judges[rank].write(self.ranks[rank].reader.pack(kind, meta, blob))

    def _read(self, rank: int, frame: frames.Frame) -> Posted:
        """Return the operation in a frame. Raises FrameError where it is none."""
        content, number, batch = (frame.meta.get(name) for name in ("operation", "number", "batch"))
        if (
            not isinstance(content, dict)
            or not frames.is_whole(number)
            or not (batch is None or frames.is_whole(batch))
        ):
            raise frames.FrameError("an operation of no known form")
        call, content = self._call_of(rank), content | {"at": monotonic_ns()}
        operation = read_operation(rank, call, content, self.size)
        pieces: Any = frame.meta.get("pieces")  # which ``check`` looks at
        posted = Posted(number, operation, pieces, bytes_due(operation), batch=batch)
        check(posted)
        self._weigh(rank)
        if operation.kind != "send":
            bring(posted, frame.blob)
            self.held[rank] += posted.due
        elif frame.blob:
            raise frames.FrameError("a send that brings its bytes too early")
        self._expect(rank, number)
        self._pass_on(rank, frames.EVENT, {"call": call, "operation": content})
        return posted

    def _on_contents(self, rank: int, frame: frames.Frame) -> None:
        """Take the bytes of a send.

        Raises FrameError where none waits for them, or they are too many or too few.
        """
        number = frame.meta.get("number")
        posted = self.owed[rank].pop(number, None) if frames.is_whole(number) else None
        if posted is None:
            raise frames.FrameError("bytes that no operation has told of")
        bring(posted, frame.blob)
        self.held[rank] += posted.due
        self.matching.meet(posted)
        if not self.owed[rank]:
            answers, self.postponed[rank] = self.postponed[rank], []
            for meta, blob in answers:
                self._write(rank, meta, blob)

    def _answer(self, posted: Posted, blob: bytes, **more: int) -> None:
        """Answer an operation. A rank that has announced a send gets nothing before it has sent its
        bytes.

        Else it could announce all that it will send, receive everything, and only then compute.
        """
        self.held[posted.rank] -= len(posted.blob)
        meta = {"to": posted.number, **more}
        if self.owed[posted.rank]:
            self.postponed[posted.rank].append((meta, blob))
        else:
            self._write(posted.rank, meta, blob)

    def _write(self, rank: int, meta: dict, blob: bytes = b"") -> None:
        end = self.ranks[rank]
        self.moves += 1
        self.unanswered[rank].discard(meta["to"])
        if meta["to"] in self.waits.get(rank, ()):
            del self.waits[rank]
        if not end.is_open:
            return
        try:
            end.write(end.reader.pack(frames.ANSWER, meta, blob))
        except OSError:
            self._hang_up(rank)
