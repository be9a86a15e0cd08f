"""Records what each rank of a world waits for, to find out whether all ranks wait."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field

from grader.wire import frames

MAX_WAITING_THREADS = 64  # waiting threads that a rank may report


@dataclass
class Waits:
    """Records what each rank of a world waits for.

    Ranks that have no calls to make are not recorded: see ``Hub``.
    """

    # rank → what each of its threads waits for; it holds only ranks whose threads all wait
    by_rank: dict[int, list] = field(default_factory=dict)
    # The ranks that reported their wait at a standstill, and have sent nothing after that. The hub
    # relied on these reports when it gave out withheld data, or when it told the judge that held
    # ranks may go on.
    believed: set[int] = field(default_factory=set)
    # a copy of ``by_rank`` from the hub's last report of the present standstill to the judge; None
    # if the hub has not reported this standstill
    told: dict[int, list] | None = None
    # rank → how many GO frames the judge still has to send
    signs_due: Counter[int] = field(default_factory=Counter)
    have_made_calls: set[int] = field(default_factory=set)  # the ranks that have made all calls

    def on_frame(self, rank: int, kind: bytes) -> None:
        """Record that a rank has sent a frame, so it does not wait any more.

        Raises FrameError if the hub has relied on the rank's statement that all its threads wait.
        """
        if rank in self.believed and rank in self.by_rank:
            raise frames.FrameError(
                "a rank said that all its threads wait, but then it sent a frame"
            )
        self.by_rank.pop(rank, None)
        self.believed.discard(rank)
        self.signs_due[rank] += kind in (frames.HELD, frames.RAISED)
        if kind == frames.DONE:
            self.have_made_calls.add(rank)

    def on_judge(self, rank: int, kind: bytes) -> None:
        """Record that the judge has sent a frame to a rank."""
        self.signs_due[rank] -= kind == frames.GO
        self.by_rank.pop(rank, None)

    def on_answer(self, rank: int, number: int) -> None:
        """Record that a rank gets the answer with this number."""
        if number in self.by_rank.get(rank, ()):
            del self.by_rank[rank]

    def read(self, rank: int, waits: object) -> list:
        """Check and return ``waits``, the list of what a rank's threads wait for.

        The rank itself has sent this list. Raises FrameError if the list does not have the right
        form. Also raises FrameError if the list says that the rank waits for new calls, although
        the rank has not made all current calls.
        """
        if not isinstance(waits, list) or len(waits) > MAX_WAITING_THREADS:
            raise frames.FrameError("a wait of no known form")
        if not all(frames.is_whole(key) or key in frames.FOR_JUDGE for key in waits):
            raise frames.FrameError("a wait of no known form")
        if frames.FOR_INPUTS in waits and rank not in self.have_made_calls:
            raise frames.FrameError("a wait for new calls before the current calls were made")
        return waits

    def note(self, rank: int, waits: list, unanswered: Collection[int]) -> None:
        """Record what all threads of a rank wait for, unless one of them can already go on."""
        # If the judge has already sent the GO frame, this frame is on its way to the rank.
        is_under_way = frames.FOR_GO in waits and self.signs_due[rank] <= 0
        is_answered = any(frames.is_whole(key) and key not in unanswered for key in waits)
        if not is_answered and not is_under_way:
            self.by_rank[rank] = waits

    def held_ranks(self) -> list[int]:
        """Return the ranks that wait for a GO frame from the judge."""
        return [rank for rank, waits in self.by_rank.items() if frames.FOR_GO in waits]

    def believe(self) -> None:
        """Record that the hub relies on the waits: see ``believed``."""
        self.believed = set(self.by_rank)

    def are_for_inputs(self, size: int) -> bool:
        """Return whether each of the first ``size`` ranks waits for new calls."""
        return all(self.by_rank.get(rank) == [frames.FOR_INPUTS] for rank in range(size))
