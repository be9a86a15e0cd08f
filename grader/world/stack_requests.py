"""Asks ranks for their Python stacks, and the hub for its count of moves.

The hub counts a move whenever it reads from a rank, answers a rank, or writes data that had to
wait: see ``Hub.moves``. If the stacks and the count stay the same, this is evidence that the ranks
stand still.
"""

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from grader.world import stack_frames
from grader.world.fork_server_client import ENGINE
from grader.world.report import RankReport

PATIENCE_SECONDS = 2.0  # all answers have to arrive within this time
QUIET_SECONDS = 0.03  # if nothing arrives for this time, all stacks count as complete
MAX_STACK_BYTES = 1 << 18  # of the stacks of one rank
# While student code communicates, lines of these grader files are on the stack. Reports omit these
# lines.
OUR_LINES = (
    "argument_checks.py",
    "link.py",
    "process_group.py",
    "receives.py",
    "tensor_memory.py",
    "wait_recorder.py",
    "work.py",
)
AROUND_WAITS = {str(ENGINE / "grader" / "rank" / name) for name in OUR_LINES}


class Stacks:
    """Asks for the stacks of a world's ranks, and reads them.

    ``ask_moves`` asks the hub for its count of moves.
    """

    def __init__(self, size: int, pids: Mapping[int, int], ask_moves: Callable[[], None]) -> None:
        self.size, self.pids, self.ask_moves = size, pids, ask_moves
        self.texts = [b""] * size
        self.asked_at: float | None = None  # None: no answer is awaited
        self.ever_asked = False
        self.grew_at = 0.0
        self.moves: int | None = None  # the hub's count of moves
        # moves and stacks of the last reading; None if a rank has sent something since then
        self.before: tuple | None = None

    @property
    def are_awaited(self) -> bool:
        return self.asked_at is not None

    def ask(self, ranks: list[RankReport], now: float) -> None:
        """Ask these ranks for their stacks, and the hub for its count of moves.

        Send each of these ranks a signal, except ranks that are held.
        """
        self.asked_at = self.grew_at = now
        self.texts = [b""] * self.size
        self.moves, self.ever_asked = None, True
        self.ask_moves()
        for rank in ranks:
            if rank.held is None and rank.rank in self.pids:
                try:
                    os.kill(self.pids[rank.rank], signal.SIGUSR1)
                except ProcessLookupError:
                    pass

    def add(self, rank: int, data: bytes) -> None:
        """Add a part of the text of a rank's stacks, unless the text is too long already."""
        if len(self.texts[rank]) < MAX_STACK_BYTES:
            self.texts[rank] += data
            self.grew_at = time.monotonic()

    def have_arrived(self, ranks: list[RankReport], now: float) -> bool:
        """Return whether all answers have arrived, or the time for them is over."""
        assert self.asked_at is not None  # the caller has asked before
        all_there = self.moves is not None and all(self.texts[rank.rank] for rank in ranks)
        return (
            all_there
            and now - self.grew_at > QUIET_SECONDS
            or now - self.asked_at >= PATIENCE_SECONDS
        )

    def read(self, ranks: list[RankReport]) -> bool:
        """Write the stacks into the reports. Return whether nothing changed since the last reading.

        Nothing has changed if the stacks and the hub's count are the same as at the last reading.
        One reading cannot prove that the ranks stand still. A rank may have got the awaited data
        just before the reading. On a busy machine, such a rank may go on only later.
        """
        for rank in ranks:
            stacks = stack_frames.parse_stacks(self.texts[rank.rank].decode(errors="replace"))
            own = [[frame for frame in stack if frame.file not in AROUND_WAITS] for stack in stacks]
            rank.stacks = [stack for stack in own if stack]
        self.asked_at = None
        before, self.before = self.before, (self.moves, [rank.stacks for rank in ranks])
        return self.moves is not None and self.before == before

    def read_crash(self, rank: RankReport) -> None:
        """Parse the stacks of a crashed rank, and put them into its report."""
        rank.stacks = stack_frames.parse_stacks(self.texts[rank.rank].decode(errors="replace"))


def is_communicating(rank: RankReport, submission_dir: Path, has_open_operation: bool) -> bool:
    """Return whether a thread of a rank is in a communication."""
    return any(
        stack_frames.in_communication(stack, submission_dir, has_open_operation)
        for stack in rank.stacks
    )


def seems_to_wait(rank: RankReport, submission_dir: Path) -> bool:
    """Return whether a thread of a rank seems to wait, but nothing shows what it waits for."""
    return any(stack_frames.waits_for_nothing(stack, submission_dir) for stack in rank.stacks)
