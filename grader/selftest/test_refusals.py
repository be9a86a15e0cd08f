"""A function that raises a ValueError for everything gets no points for that."""

import re

import pytest

from grader.assignment import PARTS
from grader.check.record import FAILED, PASSED, Answers, Record
from grader.check.refusals import answers_in, fail_where_right_calls_are_refused
from grader.selftest.grading import ROOT, grade
from grader.world.report import Call, Raised, RankReport, Returned, WorldReport

F = "collectives.broadcast"
MISUSE = Answers(wrong=2)
REFUSES = '''
def _refuse(*args, **kwargs):
    """Name every number, as a message about a wrong argument would."""
    import re
    numbers = dict.fromkeys(re.findall(r"[0-9]+", f"{args} {kwargs}"))
    raise ValueError(" ".join([*list(numbers)[:20], f"{args}"[:0]]))
'''


def record(answers: Answers, visibility: str = "visible", status: str = PASSED) -> Record:
    return Record("id", "collectives", "1.1", "", 1.0, visibility, status, answers={F: answers})


@pytest.mark.parametrize(
    "others, status",
    [
        ([], PASSED),
        ([record(Answers(refused=1), status=FAILED)], FAILED),
        ([record(Answers(accepted=2, refused=1), status=FAILED)], PASSED),
        ([record(Answers(accepted=1, refused=2), status=FAILED)], FAILED),
        ([record(Answers(refused=3), "after_published", FAILED)], PASSED),
    ],
)
def test_refusals_count_only_if_right_arguments_are_accepted(others, status):
    misuse = record(MISUSE)
    fail_where_right_calls_are_refused([misuse, *others])
    assert misuse.status == status
    if status == FAILED:
        assert "with right arguments" in misuse.message and F in misuse.message


def test_hidden_checks_depend_on_all_checks():
    hidden = record(MISUSE, "after_published")
    fail_where_right_calls_are_refused(
        [hidden, record(Answers(refused=3), "after_published", FAILED)]
    )
    assert hidden.status == FAILED


def test_answers_of_a_world_are_counted_by_function(tmp_path):
    refusal = Raised("ValueError", "no", [], True, False, False, 0)
    broken = Raised("TypeError", "no", [], False, False, False, 0)
    calls = [Call(F, [], may_raise=True), Call(F, []), Call(F, []), Call("a.b", [])]
    outcomes = [
        {0: refusal, 1: Returned(1, [], {}), 2: refusal, 3: broken},
        {0: refusal, 1: Returned(1, [], {})},
    ]
    ranks = [RankReport(rank, outcomes=own) for rank, own in enumerate(outcomes)]
    found = answers_in(WorldReport(2, calls, tmp_path, ranks, ending="failed"))
    assert found == {F: Answers(accepted=1, refused=1, wrong=1)}


@pytest.mark.long
@pytest.mark.parametrize("part", PARTS)
def test_who_refuses_everything_gets_nothing(tmp_path, part):
    folder = tmp_path / "submission"
    folder.mkdir()
    stub = (ROOT / "handout" / f"{part}.py").read_text()
    parts = re.split(r"^( *)raise NotImplementedError\(.*$", stub, flags=re.MULTILINE)
    text = "".join(
        f"{code}{indent}_refuse(locals())" for code, indent in zip(parts[::2], parts[1::2])
    )
    (folder / f"{part}.py").write_text(f"{text}{parts[-1]}{REFUSES}")
    graded = grade(folder, tmp_path / "results.json", "--part", part)
    assert graded.code == 0 and graded.score == 0
