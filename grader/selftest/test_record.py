"""A message that several checks share is shown once."""

import re
import shutil

import pytest

from grader.check.record import FAILED, Record, messages
from grader.diagnosis.finding import Finding, Line, RankSummary
from grader.selftest.grading import ROOT, grade

BROKEN = Finding(
    "x.py cannot be imported: NameError: y", (Line("    x.py:3:  y"),), "f() on 1 rank"
)
OTHER_CALL = Finding(BROKEN.headline, BROKEN.lines, "g() on 2 ranks")
OTHER_LINE = Finding(BROKEN.headline, (Line("    x.py:4:  y"),), "g() on 2 ranks")
PRINTED = Finding(BROKEN.headline, BROKEN.lines, ranks=(RankSummary(0, "", printed=("hi",)),))
SHORT = Finding("rank 0 raised ValueError", call="f() on 1 rank")


def told(*findings: Finding) -> list[str]:
    return list(
        messages(Record("", "", "1.1", "a", 1.0, "visible", FAILED, one) for one in findings)
    )


def test_a_message_of_several_lines_is_told_once():
    assert told(BROKEN, OTHER_CALL, OTHER_CALL) == [
        "f() on 1 rank\nx.py cannot be imported: NameError: y\n    x.py:3:  y",
        *["As above: x.py cannot be imported: NameError: y"] * 2,
    ]


@pytest.mark.parametrize("second", [OTHER_LINE, PRINTED])
def test_messages_that_differ_are_told_in_full(second):
    assert told(BROKEN, second)[1] == str(second)


def test_a_message_of_one_line_stays_as_it_is():
    assert told(SHORT, SHORT) == [str(SHORT)] * 2


def test_a_syntax_error_is_shown_once_in_the_terminal(tmp_path):
    shutil.copytree(ROOT / "handout", tmp_path / "work", ignore=shutil.ignore_patterns("figures"))
    file = tmp_path / "work" / "collectives.py"
    file.write_text(re.sub(r"(def shift_right\(.*)\)", r"\1", file.read_text()))
    printed = grade(tmp_path / "work", tmp_path / "r.json", "--only", "1.6").printed
    assert printed.count("    collectives.py:") == 1, printed
    assert printed.count("As above: collectives.py cannot be imported: SyntaxError") >= 1
