"""Points and extra credit of a course: in records, in results.json, on the terminal, on the page."""

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import jsonschema
import pytest
from rich.console import Console

from grader import assignment
from grader.check.api import CheckFailed, CheckWorld, NotAttempted
from grader.check.check_metadata import record_of
from grader.check.plugin import about_hidden_checks, verdict
from grader.check.record import FAILED, NOT_ATTEMPTED, PASSED, Record
from grader.course.outcomes import read as outcomes_of
from grader.course.results import GRADED, SubmissionResult
from grader.course.submissions import Submission
from grader.course_file import FILE, NOT, ON_TOP, UP_TO_THE_TOTAL, Course, course
from grader.diagnosis.finding import Finding
from grader.gradescope.metadata import Upload
from grader.gradescope.upload import fit
from grader.intake.staging import read, stage_submission
from grader.platforms import autolab
from grader.platforms.formats import reward
from grader.platforms.shown import share
from grader.reports import page, results_json, terminal
from grader.reports.summary import counted, summary
from grader.selftest.grading import ROOT
from grader.watch.screen import keys

SCHEMA = json.loads((ROOT / "grader" / "selftest" / "results.schema.json").read_text())


@pytest.fixture
def rules(tmp_path, monkeypatch):
    """Return ``rules(text)``, which makes this text's course the graded one, and returns it."""

    def take(text: str) -> Course:
        path = tmp_path / f"course{len(list(tmp_path.iterdir()))}.toml"
        path.write_text(text)
        monkeypatch.setenv(FILE, str(path))
        return course()

    return take


def record(number: str, points: float, status: str, is_extra: bool = False) -> Record:
    part = next(name for name, part in assignment.PARTS.items() if number in part.problems)
    finding = Finding("" if status == PASSED else "No.")
    return Record(f"test_{number}", part, number, "it works", points, "visible", status, finding,
                  is_extra=is_extra)  # fmt: skip


RECORDS = [
    record("1.1", 8, PASSED),
    record("1.2", 2, FAILED),
    record("3.5", 6, PASSED, is_extra=True),
    record("5.6", 1, FAILED, is_extra=True),
]


# ——— points


CHECK = """
from gradescope_utils.autograder_utils.decorators import number, weight

@number("{number}")
@weight({weight})
def test_it(): "It works"
"""


def collected(request, tmp_path, number: str, weight: float) -> Record:
    path = tmp_path / "test_collectives.py"
    path.write_text(CHECK.format(number=number, weight=weight))
    module = pytest.Module.from_parent(request.session, path=path)
    return record_of(next(iter(module.collect())))


def test_points_of_a_course_multiply_those_of_the_checks(request, tmp_path, rules):
    rules('[points]\n"1.7" = 8\n[extra_credit]\nproblems = ["1.7"]')
    found = collected(request, tmp_path, "1.7", 0.5)
    assert found.points == 0.8 and found.is_extra


def test_points_that_a_course_does_not_change_stay_to_the_digit(request, tmp_path, rules):
    rules('[points]\n"1.7" = 8')
    found = collected(request, tmp_path, "1.1", 0.1)
    assert found.points == 0.1 and not found.is_extra


def test_students_are_told_the_total_of_their_course(rules):
    assert "the rest of the 100 points" in about_hidden_checks()
    rules(
        '[course]\nparts = ["collectives"]\n[points]\n"1.7" = 8\n[extra_credit]\nproblems=["1.1"]'
    )
    assert "the rest of the 15 points" in about_hidden_checks()


# ——— extra credit


@pytest.mark.parametrize(
    "counts, extra, expected",
    [
        (ON_TOP, 6, 14),
        (UP_TO_THE_TOTAL, 6, 10),
        (UP_TO_THE_TOTAL, 1, 9),
        (NOT, 6, 8),
    ],
)
def test_what_counts(counts, extra, expected):
    assert counted(8, 10, extra, counts) == expected


@pytest.mark.parametrize("counts, score", [(ON_TOP, None), (UP_TO_THE_TOTAL, 10), (NOT, 8)])
def test_the_platform_gets_the_points_that_count(rules, counts, score):
    """Gradescope adds up the tests' scores, unless the document has a score."""
    found = rules(f'[extra_credit]\nproblems = ["3.5", "5.6"]\ncounts = "{counts}"')
    document = results_json.as_results(RECORDS, 1.0, [], {"seed": 1})
    jsonschema.validate(document, SCHEMA)
    assert document.get("score") == score
    assert sum(test["score"] for test in document["tests"]) == 14
    assert document["extra_data"] == {
        "seed": 1,
        "base": {"score": 8, "max_score": 10},
        "extra_credit": {"score": 6, "max_score": 7, "counts": counts},
    }
    names = {test["number"]: test["name"] for test in document["tests"]}
    assert names["1.1"] == "The eight collectives · it works"
    assert names["3.5"] == "Extra credit: Buckets that overlap · it works"
    late = replace(found, late=replace(found.late, percent_per_day=50, cut_off_days=0))
    upload = Upload(created=None, due=None)
    assert fit(document, late, upload).get("score") == score


@pytest.mark.parametrize("counts, score", [(ON_TOP, 14), (UP_TO_THE_TOTAL, 10), (NOT, 8)])
def test_all_that_read_a_document_count_alike(rules, counts, score):
    """The scores of a course, the page about it, and other platforms give the same points."""
    rules(f'[extra_credit]\nproblems = ["3.5", "5.6"]\ncounts = "{counts}"')
    document = results_json.as_results(RECORDS, 1.0, [], {"seed": 1})
    assert results_json.points_of(document) == (score, 10)
    result = SubmissionResult(Submission("a"), GRADED, document=document)
    outcomes = outcomes_of([result])
    assert (result.total, outcomes.graded[0].points, outcomes.best) == (score, score, 10)
    assert not outcomes.damaged()
    assert share(*results_json.points_of(document)) == min(1, score / 10)
    autolab_scores = json.loads(autolab.autoresult(document))
    assert sum(autolab_scores["scores"].values()) == autolab_scores["scoreboard"][-1] == score
    assert autolab_scores["scores"]["Collectives"] == 8
    assert autolab_scores["scores"].get("Extra credit") == (None if counts == ON_TOP else score - 8)
    assert float(reward(document)) == round(14 / 17, 6)  # all problems count: no rule of a course


@pytest.mark.parametrize("counts", [ON_TOP, UP_TO_THE_TOTAL, NOT])
def test_extra_credit_graded_alone_counts_as_itself(rules, counts):
    """A task for agents measures one part in this way, whatever the course's rule is."""
    rules(f'[extra_credit]\nproblems = ["3.5", "5.6"]\ncounts = "{counts}"')
    extra = [record for record in RECORDS if record.is_extra]
    document = results_json.as_results(extra, 1.0, [], {"seed": 1})
    assert "score" not in document  # so Gradescope adds up the points of the checks
    assert results_json.points_of(document) == (6, 7)
    assert share(*results_json.points_of(document)) == round(6 / 7, 6)


@pytest.mark.parametrize("counts, expected", [(ON_TOP, 7), (UP_TO_THE_TOTAL, 5), (NOT, 4)])
def test_lateness_takes_its_part_of_the_points_that_count(rules, counts, expected, monkeypatch):
    found = rules(f'[extra_credit]\nproblems = ["3.5", "5.6"]\ncounts = "{counts}"')
    monkeypatch.setattr("grader.gradescope.upload.deduction", lambda *_: (50, "Late."))
    document = results_json.as_results(RECORDS, 1.0, [], {})
    assert fit(document, found, Upload())["score"] == expected


def test_without_extra_credit_results_say_nothing_of_it():
    base = [one for one in RECORDS if not one.is_extra]
    document = results_json.as_results(base, 1.0, [], {})
    assert "score" not in document and document["extra_data"] == {}
    assert "xtra" not in page.page(base, "mine", []) and "xtra" not in shown(base)


def shown(records: list[Record]) -> str:
    console = Console(file=io.StringIO(), width=120)
    terminal.show(console, records, [])
    return console.file.getvalue()


def test_the_terminal_and_the_page_show_two_totals(rules):
    rules('[extra_credit]\nproblems = ["3.5", "5.6"]\ncounts = "up to the total"')
    text = shown(RECORDS)
    assert "8 of 10" in text and "6 of 7" in text and "14" not in text
    assert "the sum is at most 10 points. In all: 10 points." in text
    assert text.index("1.2 ") < text.index("8 of 10") < text.index("Extra credit")
    html = page.page(RECORDS, "mine", [])
    assert "<b>8</b> of 10 points" in html
    assert "Extra credit: 6 of 7 points. It is added to the other points, but the sum" in html
    assert "extra credit 6 of 6" in html


def test_the_summary_tells_base_and_extra_apart():
    total = summary(RECORDS)
    assert (total.base.score, total.base.best) == (8, 10)
    assert (total.extra.score, total.extra.best) == (6, 7)


# ——— optional parts


@pytest.fixture
def optional(rules):
    """Return a part of extra credit, in a course that takes one other part."""
    rules('[course]\nparts = ["collectives", "sharded_data_parallel"]')
    return "sharded_data_parallel"


def hand_in(tmp_path, leave_out: str = "", **texts: str):
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in course().files:
        text = texts.get(name.removesuffix(".py"), "x = 1\n")
        if name != f"{leave_out}.py":
            (folder / name).write_text(text)
    return folder


def test_an_optional_part_is_extra_credit(optional):
    assert course().extra == set(assignment.PARTS[optional].problems)


@pytest.mark.parametrize("how", ["missing", "untouched", "a comment more"])
def test_an_optional_part_that_is_left_out_is_not_attempted(optional, tmp_path, how):
    given = (ROOT / "handout" / f"{optional}.py").read_text()
    given += "# Later.\n" * (how == "a comment more")
    left_out = {"leave_out": optional} if how == "missing" else {optional: given}
    staged = stage_submission(hand_in(tmp_path, **left_out), tmp_path / "stage")
    assert list(staged.absent) == [optional] and staged.warnings == []
    assert staged.absent[optional].startswith("Not attempted: ")
    world = CheckWorld(lambda *_: None, None, staged.absent)
    request = type("Request", (), {"function": f"{optional}.flatten"})
    with pytest.raises(NotAttempted) as caught:
        world(2, request)
    assert verdict(caught.value)[0] == NOT_ATTEMPTED


def test_an_optional_part_that_is_begun_is_graded(optional, tmp_path):
    assert read(hand_in(tmp_path)).absent == {}


@pytest.mark.parametrize("optional_part", [n for n, p in assignment.PARTS.items() if p.is_extra])
def test_one_written_function_of_an_optional_part_is_an_attempt(optional_part, rules, tmp_path):
    """A student's copy behaves in the same way. Its folder with the stubs is the submission."""
    rules("")
    given = (ROOT / "handout" / f"{optional_part}.py").read_text()
    begun = re.sub(r"raise NotImplementedError\(.*\)", "return 1", given, count=1)
    assert begun != given
    left = read(hand_in(tmp_path, **{optional_part: begun})).absent
    assert optional_part not in left
    (tmp_path / "mine" / f"{optional_part}.py").write_text(given)
    assert optional_part in read(tmp_path / "mine").absent


def test_another_part_that_is_left_out_fails(optional, tmp_path):
    absent = read(hand_in(tmp_path, leave_out="collectives")).absent
    assert absent == {"collectives": "The submission has no collectives.py."}
    with pytest.raises(CheckFailed) as caught:
        CheckWorld(lambda *_: None, None, absent)(2, type("R", (), {"function": "collectives.f"}))
    assert verdict(caught.value)[0] == FAILED


def test_what_is_not_attempted_is_told_once():
    open_ones = [replace(RECORDS[3], status=NOT_ATTEMPTED), RECORDS[0]]
    assert "Not attempted, 1 check: problem 5.6" in shown(open_ones)
    assert "not attempted" in page.page(open_ones, "mine", [])
    two = [replace(one, status=NOT_ATTEMPTED) for one in RECORDS[2:4]]
    assert "Not attempted, 2 checks: problems 3.5, 5.6" in shown(two)


# ——— parts


@pytest.mark.long
def test_checks_of_parts_that_a_course_does_not_take_are_not_run(tmp_path):
    path = tmp_path / "course.toml"
    path.write_text('[course]\nparts = ["benchmarking"]')
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:hypothesispytest", "tests"],
        cwd=ROOT,
        env=os.environ | {FILE: str(path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    files = {line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line}
    assert files == {"tests/test_benchmarking.py"} and "deselected" in done.stdout


def test_keys_of_a_watch_are_those_of_the_parts(rules):
    assert f"[1-{len(assignment.PARTS)}] a part" in keys()
    rules('[course]\nparts = ["collectives", "data_parallel"]')
    assert "[1,3] a part" in keys()


# ——— further files


def test_files_of_parts_that_a_course_does_not_take_are_told_kindly(rules, tmp_path):
    rules('[course]\nparts = ["collectives"]')
    folder = hand_in(tmp_path)
    (folder / "tensor_parallel.py").write_text("x = 1\n")
    (folder / "mine.py").write_text("x = 1\n")
    found = read(folder)
    assert found.texts == {"collectives.py": "x = 1\n"} and found.absent == {}
    assert found.warnings == [
        "These files were not graded, because the course does not take their parts:"
        " tensor_parallel.py.",
        "These files were ignored, because the assignment does not list them: mine.py.",
    ]


def test_the_grader_and_its_tests_ignore_an_edited_course():
    assert os.environ[FILE] == os.devnull and course() == Course()
