"""Makes the failure that a student sees: a message about a call, and the evidence of every rank."""

import re
from collections.abc import Mapping, Sequence

from grader.check.check_exceptions import CheckFailed
from grader.check.hazards import in_import
from grader.diagnosis.comparison import describe
from grader.diagnosis.finding import Compared, Finding, Line, RankSummary, likely_line
from grader.diagnosis.rank_summaries import summarize, timeline
from grader.wire import frames
from grader.wire.events import Mark
from grader.world.report import Raised, Returned, WorldReport

# Messages show paths without the folders of libraries, because these folders do not help a student.
LIBRARIES = re.compile(r"/[^\s'\":]*/(?:(?:site|dist)-packages|lib/python3\.\d+)/")

# The first line of a failure's message. This line names the call: see ``failure``.
CALL_LINE = re.compile(r"[\w.]+(\(.*\))? on \d+ ranks?")


def failure(
    report: WorldReport,
    index: int,
    headline: str,
    lines: Sequence[Line] = (),
    compared: Mapping[int, Compared] | None = None,
) -> CheckFailed:
    """Return the failure of call number ``index``, with the ranks' evidence.

    The message has ``headline``, and ``lines`` below it.

    ``compared`` maps each rank whose value is wrong to the comparison with the expected value.
    """
    called = report.calls[index]
    if reason := in_import(report, index):
        lines = [likely_line(f"{reason}."), *lines]
    told = _note_of_raising_turn(report, index) or called.note
    note = f"({told})" if told else ""
    ranks = f"{report.size} rank{'s' if report.size > 1 else ''}"
    call = f"{called.function.partition('.')[2]}{note} on {ranks}"
    found = Finding(
        headline,
        tuple(lines),
        call,
        _evidence(report, index, compared or {}),
        timeline(report, index),
    )
    return CheckFailed(
        found.written(lambda text: LIBRARIES.sub("", text).replace(f"{report.submission_dir}/", ""))
    )


def _note_of_raising_turn(report: WorldReport, index: int) -> str:
    """Return the note of the turn in which a rank raised an exception: see ``in_turn`` in drivers.

    Return "" if no rank names such a turn.
    """
    raised = [rank for rank in report.ranks if isinstance(rank.outcomes.get(index), Raised)]
    marks = (e for rank in raised for e in rank.trail if isinstance(e, Mark) and e.call == index)
    turns = [e.name for e in marks if e.name.startswith(frames.TURN_RAISED)]
    notes = {
        f"{frames.TURN_RAISED}{turn}": note
        for turn, note in enumerate(report.calls[index].turn_notes)
    }
    return notes.get(turns[0], "") if turns else ""


def _evidence(
    report: WorldReport, index: int, compared: Mapping[int, Compared]
) -> tuple[RankSummary, ...]:
    waiting = report.waiting()
    evidence = []
    for rank in report.ranks:
        outcome = rank.outcomes.get(index)
        returned = describe(outcome.value) if isinstance(outcome, Returned) else ""
        evidence.append(summarize(report, index, rank, waiting, returned, compared.get(rank.rank)))
    return tuple(evidence)
