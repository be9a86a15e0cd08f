"""A case's file is read as ``hostile_case`` describes it, or refused with the file's name."""

from pathlib import Path

import pytest

from grader.selftest import hostile_case
from grader.selftest.hostile_case import THREATS, Case
from grader.selftest.hostile_reader import CASES, FOLDER, KEYS, TEXTS, BadCase, read
from grader.wire import tiers

LEAST = '"""Does nothing.\n\nthreat: 7\n"""\n'
CODE = "def shift_right(tensor):\n    return tensor\n"


@pytest.fixture
def written(tmp_path):
    """Return a function that reads a case's text from a file."""

    def case(text: str) -> Case:
        (tmp_path / "tries-it.py").write_text(text, encoding="utf-8")
        return read(tmp_path / "tries-it.py")

    return case


def test_header_of_one_line_has_defaults(written):
    assert written(LEAST + "\n\n" + CODE) == Case(
        "tries-it", "Does nothing.", 7, full=("1.4",), files={"collectives.py": CODE}
    )


def test_every_key_is_read(written):
    case = written('''r"""Does much,
        on two lines.

        threat: 18
        part: pipeline_parallel
        control: 5.3
        full: hidden 5.1, public 5.2
        zero: 5.4
        some: 5.5
        runs: 5.6
        status: failed
        says: one: thing
        says: "two\\n" * 2
        note: a note
        never: "\\u2028"
        extends: solutions
        alone: yes
        contained: yes
        seconds: 60
        removed: a.py, b.py
        folders: c
        fifos: d
        links: e = .., f = @ROOT@/g
        binary: h = 00, hex:ff = 01
        repeated: i = "long\\n" * 1000
        zipped: yes
        entries: 5
        junk: PK
        unless none, uid: a gap
        """\n''')
    assert case == Case(
        name="tries-it",
        tries="Does much, on two lines.",
        threat=18,
        part="pipeline_parallel",
        full=("5.3", "hidden 5.1", "public 5.2"),
        zero=("5.4",),
        some=("5.5",),
        runs=("5.6",),
        status="failed",
        says=("one: thing", "two\ntwo\n"),
        note=("a note",),
        never=("\u2028",),
        extends="solutions",
        alone=True,
        contained=True,
        seconds=60,
        removed=("a.py", "b.py"),
        folders=("c",),
        fifos=("d",),
        links={"e": "..", "f": "@ROOT@/g"},
        binary={"h": "00", "hex:ff": "01"},
        repeated={"i": ("long\n", 1000)},
        zipped=True,
        entries=5,
        junk="PK",
        unless={"none": "a gap", "uid": "a gap"},
    )
    assert case.problems == ["5.1", "5.2", "5.3", "5.4", "5.5", "5.6"]


def test_any_means_all_tiers(written):
    case = written(LEAST.replace('7\n"', '7\nunless any: a gap\n"'))
    assert case.unless == dict.fromkeys(tiers.TIERS, "a gap")


def test_control_that_is_none_leaves_no_problem_with_full_marks(written):
    case = written(LEAST.replace('7\n"', '7\ncontrol: none\nzero: 1.6\n"'))
    assert case.full == () and case.problems == ["1.6"]


def test_files_follow_markers(written):
    case = written(
        LEAST.replace('7\n"', '7\npart: benchmarking\n"')
        + f"\n\n{CODE}\n\n# --- file: collectives.py\n\n\n# --- text: setup.cfg\n# [a]\n#\n\n#   b"
        " = 1\n" + f"\n\n# --- compiled: helper.py\n\n\n{CODE}\n"
    )
    assert case.files == {
        "benchmarking.py": CODE,
        "collectives.py": "",
        "setup.cfg": "[a]\n\n  b = 1\n",
    }
    assert case.compiled == {"helper.py": CODE}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (CODE, "begin the file with a header"),
        ("# a comment\n" + LEAST, "begin the file with a header"),
        ('"""threat: 7\n"""\n', "begin the header with a sentence"),
        ('"""Does nothing\n\nthreat: 7\n"""\n', "begin the header with a sentence"),
        ('"""Does nothing.\n"""\n', "the header has no `threat: row`"),
    ],
)
def test_missing_header_is_refused(written, text, sentence):
    refused(written, text, sentence)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("threats: 7", "'threats' is no key of a header; there are threat, part, control, full,"),
        ("zero of it: 1.6", "'zero of it' is no key of a header"),
        ("zero = 1.6", "'zero = 1.6' is not `key: value`"),
        ("threat: 7", "'threat: 7': the key is there twice"),
        ("part: collective", "'collective' is none of collectives, benchmarking,"),
        ("zero: 1.6 1.7", "'1.6 1.7' is no problem such as 1.6, public 1.6 or hidden 1.6"),
        ("full: 1.9", "'1.9' is no problem"),
        ("control: all", "'all' is no problem"),
        ("control: none", "the header names no problem to run"),
        ("alone: no", "'no' is none of yes"),
        ("base: mutants", "'mutants' is none of solutions, handout"),
        ("seconds: long", "'long' is no whole number above 0"),
        ("entries: 0", "'0' is no whole number above 0"),
        ("links: a, b = c", "expected NAME = VALUE, NAME = VALUE"),
        ('says: "open', 'a quoted text looks like "text" or "text" * 3'),
        ("repeated: a = b", "a quoted text looks like"),
        ("unless root: a gap", "'root' is none of uid+landlock,"),
        ("unless: a gap", "'' is none of uid+landlock,"),
        ("base: solutions\nextends: solutions", "choose one"),
    ],
)
def test_bad_line_of_a_header_is_refused(written, line, sentence):
    refused(written, LEAST.replace('7\n"', f'7\n{line}\n"'), sentence)


def test_threat_without_a_row_is_refused(written):
    refused(written, LEAST.replace("7", "28"), "'28' is none of 1, 2, 3,")


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("# --- data: a", "'# --- data: a' is not `# --- file: NAME`"),
        ("# --- file:", "'# --- file:' is not `# --- file: NAME`"),
        (f"{CODE}\n# --- file: collectives.py\n", "collectives.py is there twice"),
        ("# --- text: a\nb = 1\n", "each line of a text is a comment; in a 'b = 1' is none"),
    ],
)
def test_bad_marker_is_refused(written, code, sentence):
    refused(written, LEAST + code, sentence)


def refused(written, text: str, sentence: str) -> None:
    with pytest.raises(BadCase) as error:
        written(text)
    assert "/tries-it.py: " in str(error.value) and sentence in str(error.value)


def test_every_key_is_described():
    assert [
        key for key in (*KEYS, *TEXTS, "unless") if f"\n    {key} " not in hostile_case.__doc__
    ] == []


def test_every_threat_has_a_case():
    assert {case.threat for case in CASES} == set(THREATS)


def test_nothing_but_files_of_cases_lies_in_the_folder():
    named = {f"{case.name}.py" for case in CASES} | {"preamble.py"}
    assert {path.name for path in Path(FOLDER).iterdir() if path.name != "__pycache__"} == named
