"""``K=…`` and ``PART=…`` mean what a student who writes them expects.

If they mean nothing, the message says what exists.
"""

import json
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.assignment import PARTS
from grader.check.selection import Candidate, NothingChosen, chosen, functions, part_named
from grader.selftest.grading import ROOT

TITLES = {number: title for part in PARTS.values() for number, title in part.problems.items()}

COLLECT = """
import json, sys
import pytest
from dataclasses import asdict
from grader.check.check_metadata import candidate

class Catalogue:
    def pytest_collection_finish(self, session):
        print("FOUND", json.dumps([asdict(candidate(item)) for item in session.items]))

pytest.main(["--capture=no", "--collect-only", *sys.argv[1:]], [Catalogue()])
"""
MARKER = re.compile(r"# BEGIN SOLUTION (\d\.\d): (\w+)")
FUNCTIONS = sorted(
    {
        m.groups()
        for path in (ROOT / "solutions").glob("*.py")
        for m in MARKER.finditer(path.read_text())
    }
)


def collected(*places: str) -> list[Candidate]:
    line = [sys.executable, "-c", COLLECT, *places]
    told = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    (found,) = re.findall(r"FOUND (.*)$", told, re.MULTILINE)
    return [Candidate(**one | {"names": tuple(one["names"])}) for one in json.loads(found)]


@pytest.fixture(
    scope="module", params=[("tests",), ("tests", "grader/hidden")], ids=["public", "all"]
)
def checks(request) -> list[Candidate]:
    """Return the checks that a student has, and then those that an instructor has."""
    return collected(*request.param)


def problems(words: str, checks: list[Candidate]) -> set[str]:
    ids = chosen(words, checks)
    return {one.number for one in checks if one.id in ids}


@pytest.mark.long
@pytest.mark.parametrize("number, function", FUNCTIONS)
def test_a_function_means_its_problem(checks, number, function):
    assert number in problems(function, checks)


@pytest.mark.varied
@pytest.mark.parametrize("number", TITLES)
def test_a_number_means_the_problem_and_nothing_else(checks, number):
    everything = {one.id for one in checks if one.number == number}
    assert chosen(number, checks) == chosen(f"Problem {number}", checks) == everything
    assert everything <= chosen(TITLES[number], checks)


def test_a_parts_number_means_its_problems(checks):
    assert problems("3", checks) == set(PARTS["data_parallel"].problems)


@pytest.mark.parametrize(
    "words, number",
    [
        ("barrier", "1.2"),
        ("ring", "1.7"),
        ("shift-right", "1.6"),
        ("stopwatch", "2.2"),
        ("bucket", "3.5"),
    ],
)
def test_what_the_text_calls_it_means_it(checks, words, number):
    assert number in problems(words, checks)


def test_one_of_the_collectives_is_not_all_eight(checks):
    of_problem = {one.id for one in checks if one.number == "1.1"}
    assert 0 < len(chosen("broadcast", checks) & of_problem) < len(of_problem) / 2


def test_a_word_is_not_looked_for_within_words():
    checks = [
        Candidate("a", "1.1", ("during gathering",)),
        Candidate("b", "1.7", ("ring_all_reduce",)),
    ]
    assert chosen("ring", checks) == {"b"}


@given(data=st.data())
def test_case_and_hyphens_do_not_matter(data):
    name = data.draw(st.sampled_from(["Ring all-reduce", "shift_right", "bus_bandwidth"]))
    checks = [Candidate("a", "1.7", (name,)), Candidate("b", "1.2", ("something else",))]
    written = re.sub("[-_ ]", lambda _: data.draw(st.sampled_from(["-", "_", " ", ""])), name)
    written = "".join(data.draw(st.sampled_from([c.upper(), c.lower()])) for c in written)
    assert chosen(written, checks) == {"a"}


def test_a_test_of_the_graders_own_is_found_by_its_file():
    own = Candidate(
        "grader/selftest/test_frames.py::test_a_frame",
        names=("grader/selftest/test_frames.py::test_a_frame",),
    )
    assert chosen("test_frames", [own, Candidate("a", "1.1", ("broadcast",))]) == {own.id}


@pytest.mark.parametrize(
    "words, meant", [("rign", "ring"), ("shift_rihgt", "shift_right"), ("xyzzy", None)]
)
def test_what_means_nothing_is_told_what_there_is(checks, words, meant):
    with pytest.raises(NothingChosen) as refused:
        chosen(words, checks)
    first, *listed = str(refused.value).splitlines()
    assert f"no check matches “{words}”" in first and ("did you mean" in first) == bool(meant)
    assert meant is None or f"“{meant}”" in first
    assert [line.split()[0] for line in listed] == list(TITLES)
    assert "shift_right" in str(refused.value)


@pytest.mark.parametrize("words", ["", "-", "  ", "9.9", "1.1.1", "."])
def test_nothing_means_nothing(checks, words):
    with pytest.raises(NothingChosen):
        chosen(words, checks)


@pytest.mark.parametrize("name, part", PARTS.items())
def test_a_part_has_a_name_a_file_a_number_and_a_title(name, part):
    for words in (
        name,
        name.upper(),
        name.replace("_", "-"),
        f"{name}.py",
        str(part.number),
        f"part {part.number}",
        part.title,
    ):
        assert part_named(words) == name


def test_every_function_is_known():
    written = {(number, function) for number, names in functions().items() for function in names}
    assert written == set(FUNCTIONS)


@pytest.mark.parametrize(
    "text", ["README.md", "handout/ASSIGNMENT.md", "grader/packaging/for_students.md"]
)
def test_what_the_texts_say_means_checks(checks, text):
    commands = re.findall(r"make test .*", (ROOT / text).read_text())
    given = [dict(re.findall(r"(PART|K)=([\w.]+)", command)) for command in commands]
    asked = [one for one in given if "K" in one]
    assert asked, f"{text} does not say K="
    for one in asked:
        chosen(one["K"], [check for check in checks if f"test_{one.get('PART', '')}" in check.id])


def test_an_unknown_part_is_one_sentence():
    with pytest.raises(
        NothingChosen,
        match="^there is no part “foo”; the parts are collectives, .*pipeline_parallel",
    ):
        part_named("foo")


@pytest.mark.long
@pytest.mark.parametrize(
    "option, sentence",
    [
        ("--only=rign", "no check matches “rign”; did you mean “ring”? The problems and"),
        ("--part=foo", "there is no part “foo”; the parts are collectives, "),
        ("--seed=soon", "soon"),
        ("--device=gpu", "gpu"),
    ],
)
def test_both_commands_answer_a_slip_with_a_sentence(option, sentence):
    for command in (
        ["grader.check", "-n", "0", "--submission=handout", "tests"],
        ["grader", "handout"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", command[0], option, *command[1:]],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
        )
        said = done.stdout + done.stderr
        assert sentence in said and "Traceback" not in said and "usage:" not in said
        assert done.returncode == (4 if command[0] == "grader.check" else 2)


def test_list_of_problems_is_left_out_if_it_is_empty():
    own = Candidate("grader/selftest/test_frames.py::test_a_frame", names=("test_a_frame",))
    for candidates in ([], [own]):
        with pytest.raises(NothingChosen) as refused:
            chosen("nonsense", candidates)
        assert str(refused.value) == "no check matches “nonsense”."


def test_problem_without_known_functions_has_no_empty_brackets(monkeypatch, tmp_path):
    (tmp_path / "functions.json").write_text("{}")
    monkeypatch.setattr("grader.check.selection.FUNCTIONS", tmp_path / "functions.json")
    with pytest.raises(NothingChosen) as refused:
        chosen("nonsense", [Candidate("a", "1.1", ("broadcast",))])
    assert str(refused.value).splitlines()[1:] == [f"    1.1  {TITLES['1.1']}"]
