"""Documents, and headers of hostile cases, quote messages in their present wording."""

import re
from pathlib import Path
from textwrap import indent

import pytest

from grader.diagnosis.finding import LIKELY_PREFIX
from grader.diagnosis.root_cause import DEADLOCK, NCCL_DEADLOCK, diagnose
from grader.reference.tensor_parallel import SPLIT
from grader.selftest.grading import ROOT
from grader.selftest.test_agreement import operation
from grader.wire.events import Operation
from grader.world.report import Call, Ending, RankReport, Returned, WorldReport
from grader.world.stack_frames import StackFrame

README = (ROOT / "README.md").read_text()
ASSIGNMENT = (ROOT / "handout" / "ASSIGNMENT.md").read_text()


def message(folder: Path, file: str, line: int, code: str, *waits: Operation | None) -> str:
    """Return the message about a deadlock in which each rank waits at a line, or has returned."""
    (folder / file).write_text("\n" * (line - 1) + code)
    ranks = []
    for number, waiting in enumerate(waits):
        if waiting is None:
            ranks.append(RankReport(number, [], {0: Returned(None, [], {})}))
        else:
            stack = [StackFrame(str(folder / file), line, "function")]
            ranks.append(RankReport(number, [waiting], stacks=[stack]))
    call = Call("collectives.function", [([], {})] * len(ranks))
    report = WorldReport(len(ranks), [call], folder, ranks, ending=Ending.STUCK)
    return str(diagnose(report, 0))


def test_readme_quotes_the_message_about_a_ring(tmp_path):
    code = "dist.send(tensor.contiguous(), dst=(rank + 1) % n)"
    sends = [
        operation(rank, "send", peer=1 - rank, file="collectives.py", line=430) for rank in (0, 1)
    ]
    assert indent(message(tmp_path, "collectives.py", 430, code, *sends), "    ") in README


@pytest.mark.parametrize("file, line", [("collectives.py", 229), ("first.py", 12)])
def test_assignment_quotes_the_message_about_a_rank_that_returns_early(tmp_path, file, line):
    waits = operation(1, "all_reduce", 2, file=file, line=line)
    told = message(tmp_path, file, line, "dist.all_reduce(total)", None, waits)
    assert f"```\n{told}\n```" in ASSIGNMENT


def test_readme_quotes_the_likely_cause_in_tensor_parallelism():
    assert f"\n    {LIKELY_PREFIX}{SPLIT}\n" in README


def test_headers_of_hostile_cases_quote_a_deadlock_in_its_words():
    headers = [path.read_text() for path in (ROOT / "grader/selftest/hostile").glob("*.py")]
    quoted = [words for text in headers for words in re.findall("^says: (Deadlock.*)", text, re.M)]
    assert quoted
    for words in quoted:
        assert words in DEADLOCK or words in NCCL_DEADLOCK
