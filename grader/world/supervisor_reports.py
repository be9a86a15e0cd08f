"""Reads the messages that a world's supervisor, and the hub in it, send to the judge."""

from collections.abc import Callable

from grader.wire import frames, world_messages
from grader.wire.callbacks import Growth
from grader.wire.events import Mark
from grader.world.progress_judge import ProgressJudge
from grader.world.report import Ending, WorldReport


class SupervisorReports:
    """Takes the messages of a supervisor, and writes them into the report of its world.

    It also tells the ``ProgressJudge`` of moves, standstills and given results. ``handlers`` has a
    method for each kind of message, except for those that ``World`` itself reads: see
    ``world_messages``.
    """

    def __init__(self, report: WorldReport, judge: ProgressJudge, pids: dict[int, int]) -> None:
        self.report, self.judge, self.pids = report, judge, pids
        self.handlers: dict[str, Callable[[dict], None]] = {
            world_messages.EXITED: self._on_exit,
            world_messages.LIMIT: self._on_limit,
            world_messages.FAULT: self._on_fault,
            world_messages.MOVES: self._on_moves,
            world_messages.GIVEN: self._on_given,
            world_messages.STANDSTILL: self._on_standstill,
            world_messages.REFUSED: self._on_refused,
            world_messages.GROWN: self._on_grown,
            world_messages.SPENT: self._on_spent,
            world_messages.SPENT_BEFORE_WAIT: self._on_spent_before_wait,
            world_messages.SQUARES: self._on_squares,
            world_messages.SENT_ON_LATE: self._on_sent_on_late,
            world_messages.AWAITED_AT_ONCE: self._on_awaited_at_once,
        }

    def _on_exit(self, message: dict) -> None:
        if not self.report.ending:
            self.pids.pop(message["rank"], None)
            self.report.ranks[message["rank"]].exit = message[world_messages.EXITED]

    def _on_limit(self, message: dict) -> None:
        if not self.report.ending:
            self.report.ending = Ending.EXCESSIVE
            self.report.limit = message[world_messages.LIMIT]

    def _on_fault(self, message: dict) -> None:
        self.report.grader_fault = message[world_messages.FAULT]

    def _on_moves(self, message: dict) -> None:
        self.judge.stacks.moves = message[world_messages.MOVES]
        self._read_matching(message)

    def _on_given(self, message: dict) -> None:
        self.judge.on_results(message[world_messages.GIVEN])

    def _on_standstill(self, message: dict) -> None:
        self._read_matching(message)
        self.judge.on_standstill(message[world_messages.STANDSTILL], message["frames"])

    def _read_matching(self, message: dict) -> None:
        """Read the lists that ``Matching.report`` has added to a message of the hub."""
        self.report.behind = _read_rows(message, "behind", 3)
        self.report.unanswered = _read_rows(message, "unanswered", 2)
        self.report.pairs = _read_rows(message, "pairs", 4)

    def _on_refused(self, message: dict) -> None:
        rank = self.report.ranks[message["rank"]]
        rank.refused = message[world_messages.REFUSED]
        rank.not_allowed = message.get("not_allowed", False)

    def _on_grown(self, message: dict) -> None:
        rank, call, *growth = message[world_messages.GROWN]
        self.report.ranks[rank].grown.setdefault(call, []).append(Growth(*growth))

    def _on_spent(self, message: dict) -> None:
        rank, call, nanoseconds = message[world_messages.SPENT]
        self.report.ranks[rank].spent.setdefault(call, []).append(nanoseconds)

    def _on_spent_before_wait(self, message: dict) -> None:
        rank, call, nanoseconds = message[world_messages.SPENT_BEFORE_WAIT]
        self.report.ranks[rank].spent_before_waits.setdefault(call, []).append(nanoseconds)

    def _on_squares(self, message: dict) -> None:
        rank, call, squares, fourth_powers = message[world_messages.SQUARES]
        self.report.ranks[rank].squares.setdefault(call, []).append((squares, fourth_powers))

    def _on_sent_on_late(self, message: dict) -> None:
        rank, call, number, at = message[world_messages.SENT_ON_LATE]
        self._mark(rank, call, f"{frames.NOT_SENT_ON} {number}", at)

    def _on_awaited_at_once(self, message: dict) -> None:
        rank, call, number, at = message[world_messages.AWAITED_AT_ONCE]
        self._mark(rank, call, f"{frames.AWAITED_EARLY} {number}", at)

    def _mark(self, rank: int, call: int, name: str, at: int) -> None:
        self.report.ranks[rank].trail.append(Mark(rank, call, name, at))


def _read_rows(message: dict, name: str, length: int) -> list[list[int]]:
    """Return the value of ``name`` in a message: lists of ``length`` whole numbers.

    Return [] if the message has no such key. Raises ValueError if the value has another form.
    """
    rows = message.get(name, [])
    if not isinstance(rows, list) or not all(
        isinstance(row, list) and len(row) == length and all(map(frames.is_whole, row))
        for row in rows
    ):
        raise ValueError(f"a message of the hub whose “{name}” is of no known form")
    return rows
