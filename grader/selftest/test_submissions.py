"""Right submissions get full marks. Wrong ones lose exactly what they should.

The messages name the mistake.
"""

import shutil
from pathlib import Path

import pytest

from grader.assignment import PARTS
from grader.check.selection import functions
from grader.selftest.grading import ROOT, grade
from grader.selftest.mutants import PARTS as MUTANTS_OF_PARTS
from grader.selftest.mutation.trials import LOST
from grader.selftest.sampling import tried
from grader.watch.changes import changes, parse

pytestmark = pytest.mark.campaign

RIGHT = sorted(
    path for path in (Path(__file__).parent / "submissions").glob("*/*.py") if path.stem in PARTS
)
# `make test` tries the first mutant, and the first right file. Both are of a part that is graded
# quickly.
QUICK = "benchmarking"
RIGHT.sort(key=lambda path: path.stem != QUICK)
# `make mutation-test` tries all mutants, and `make sample` some.
MUTANTS = [mutant for part in MUTANTS_OF_PARTS for mutant in part.MUTANTS]
MUTANTS.sort(key=lambda mutant: mutant.part != QUICK)
TRIED = tried(MUTANTS, lambda mutant: mutant.name, lambda mutant: "any", share=0.02)


def using(part: str, right: str, wrong: str) -> set[str]:
    """Return the problems of the functions that differ, and of those that use them.

    The runs of Problem 8.3 use the student's functions of Problem 8.2.
    """
    of_problems = functions()
    names = {name for own in of_problems.values() for name in own}
    found = changes({part: parse(right)}, {part: parse(wrong)}, names)
    differ = found.direct | found.indirect
    numbers = {number for number, own in of_problems.items() if differ & set(own)}
    return numbers | ({"8.3"} if "8.2" in numbers else set())


@pytest.mark.parametrize("mutant", TRIED, ids=lambda mutant: mutant.name)
def test_a_wrong_submission_loses_its_points_and_no_others(tmp_path, server, mutant):
    shutil.copytree(ROOT / "solutions", tmp_path / "wrong")
    source = tmp_path / "wrong" / f"{mutant.part}.py"
    text = source.read_text()
    assert text.count(mutant.old) == 1, "this mutant no longer applies to the solution"
    source.write_text(text.replace(mutant.old, mutant.new))
    graded = grade(
        tmp_path / "wrong", tmp_path / "results.json", "--part", mutant.part, server=server.address
    )
    assert graded.code == 0, graded.complaint
    lost = graded.lost()
    assert mutant.caught <= set(lost)
    # Further checks may fail, too: of the same problems, and of those whose functions use the
    # wrong one. No other problem is touched.
    messages = [test["output"] for test in lost.values()]
    meant = {lost[check]["number"] for check in mutant.caught}
    touched = {test["number"] for test in lost.values()}
    assert meant <= touched <= meant | using(mutant.part, text, source.read_text()), messages
    assert any(mutant.words in message for message in messages), messages


@pytest.mark.parametrize(
    "file",
    tried(RIGHT, str, lambda file: "any", share=0.3),
    ids=lambda file: f"{file.parent.name} {file.stem}",
)
def test_a_right_submission_gets_full_marks(tmp_path, server, file):
    graded = grade(
        file.parent, tmp_path / "results.json", "--part", file.stem, server=server.address
    )
    lost = {check: test["output"] for check, test in graded.lost().items()}
    assert set(lost) == LOST.get((file.parent.name, file.stem), set()), lost
