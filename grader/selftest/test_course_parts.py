"""A course that takes some parts: its zips mention these parts, and no others.

Every choice of parts is tried on texts alone, which takes no time.
"""

import ast
import json
import re
from dataclasses import replace
from functools import cache
from itertools import combinations

import pytest

from grader.assignment import PARTS, POINTS
from grader.course_file import UP_TO_THE_TOTAL, About, Course, ExtraCredit
from grader.packaging import pack
from grader.packaging.course_files import for_course
from grader.packaging.course_words import extra_credit, words
from grader.packaging.marks import BadMarks, adapted, adapted_lines, holds, reflowed
from grader.selftest.grading import ROOT

SUBSETS = [names for size in range(1, len(PARTS) + 1) for names in combinations(PARTS, size)]
EXTRA = {name for name, part in PARTS.items() if part.is_extra}


def chosen(names: tuple[str, ...]) -> object:
    """Return a course of these parts as a parameter.

    ``make test`` takes those that have all or none of the extra credit, or of all other parts.
    """
    extra = EXTRA.intersection(names)
    is_short = extra in (set(), EXTRA) or set(names) - extra in (set(), set(PARTS) - EXTRA)
    id = "".join(str(PARTS[name].number) for name in names)
    return pytest.param(names, id=id, marks=[] if is_short else pytest.mark.long)


TEXT = "handout/ASSIGNMENT.md"
MARKED = (ROOT / TEXT).read_text()
# The files that students read, including the stubs and the checks.
READ = re.compile(r"README\.md|Makefile|handout/[\w/]+\.(md|py|ini)|tests/\w+\.py")
PROBLEM = re.compile(
    r"(?:[Pp]roblems?|see|K=|and|of|\(|\*\*|to|,) ?([1-9]\.[1-7])(?![\d.])(?! [GMT]B| us)"
)
PART = re.compile(r"\b[Pp]arts? ([1-9])\b")
NAMED = re.compile(r"PART=(\w+)|handout\.run (\w+)|\b(\w+)\.py\b")
# The checks of all parts import these.
OF_EVERY_COURSE = ("grader/hidden/__init__.py", "grader/hidden/world_sizes.py")


@cache
def everything() -> dict[str, bytes]:
    """Return the files of both zips for the whole assignment, before a course adapts them."""
    caught: list[dict[str, bytes]] = []

    def catch(contents, course):
        caught.append(dict(contents))
        return contents

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pack, "for_course", catch)
        pack.handout()
        pack.autograder()
    return caught[1] | caught[0]


def taking(*parts: str, **more) -> Course:
    return Course(course=About(parts=parts), **more)


def built(course: Course) -> dict[str, str]:
    """Return the files of a course: name → text. Only what students read has its text here."""
    files = for_course(everything(), course)
    return {name: data.decode() if READ.fullmatch(name) else "" for name, data in files.items()}


def anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


# ——— the whole assignment


def test_the_text_of_the_whole_assignment_is_what_stands_in_the_file():
    """The marks are left out, and so is the text that they would insert elsewhere."""
    plain = re.sub(r"^(<!-- (end|with [\w ]+|write \w+) -->)+\n", "", MARKED, flags=re.M)
    plain = re.sub(r"^<!-- with [\w ]+:((?!-->).)*-->\n", "", plain, flags=re.M | re.S)
    plain = re.sub(r"<!-- with [\w ]+:((?!-->).)*-->", "", plain, flags=re.S)
    plain = re.sub(r"<!-- (end|with [\w ]+|write \w+) -->", "", plain)
    # An insertion on lines of its own has blank lines around it.
    assert built(Course())[TEXT] == re.sub(r"\n\n\n(#|\*\*|```|!)", r"\n\n\1", plain)
    assert "<!--" not in plain


def test_github_formats_every_line_that_begins_with_a_mark():
    """GitHub does not format a line that begins with a comment.

    So a line that begins with a mark must contain nothing but marks.
    """
    text = re.sub(r"^<!-- with [\w ]+:((?!-->).)*-->$", "", MARKED, flags=re.M | re.S)
    for line in text.splitlines():
        assert not line.startswith("<!--") or re.fullmatch(r"(<!-- [\w ]+ -->)+", line), line


def test_all_files_of_the_whole_assignment_are_packed():
    assert set(built(Course())) == set(everything())


# ——— some parts


@pytest.mark.parametrize("parts", [chosen(names) for names in SUBSETS])
def test_a_course_speaks_of_its_parts_alone(parts):
    course, files = taking(*parts), built(taking(*parts))
    numbers = {str(part.number) for part in course.parts.values()}
    for name, text in files.items():
        assert "<!--" not in text and "BEGIN WITH" not in text, name
        for line in text.splitlines():
            if not name.endswith(".py") or "Problem" in line:
                assert set(PROBLEM.findall(line)) <= set(course.problems), f"{name}: {line}"
            assert set(PART.findall(line)) <= numbers, f"{name}: {line}"
            said = {word for found in NAMED.findall(line) for word in found}
            assert not said & (set(PARTS) - set(parts)), f"{name}: {line}"
    has_clusters = any(name.startswith("handout/clusters/") for name in files)
    assert has_clusters is bool({"3", "4", "5"} & numbers)
    check_links(files)
    check_points(files[TEXT], course)
    check_commands(files)


def check_links(files: dict[str, str]) -> None:
    text = files[TEXT]
    prose = re.sub(r"^```.*?^```", "[code]", text, flags=re.M | re.S)
    titles = {anchor(title) for title in re.findall(r"^#+ (.+)$", prose, re.MULTILINE)}
    assert set(re.findall(r"\]\(#([\w-]+)\)", text)) <= titles
    figures = {name.rpartition("/")[2] for name in files if name.startswith("handout/figures/")}
    assert set(re.findall(r"\(figures/([\w-]+\.svg)\)", text)) == figures
    assert not re.search(r"\n{3,}", prose) and "  ·" not in text and "· ·" not in text
    assert not re.search(r"^#.*\n[^\n]", prose, re.MULTILINE), "a heading without a blank line"
    for before, heading in re.findall(r"(.*)\n(#+ .*)", prose):
        assert not before, heading


def check_points(text: str, course: Course) -> None:
    rows = re.findall(r"^\| (\**)([\d.]+)\** \| .*? \| \**([\d.]+)\** \|$", text, re.MULTILINE)
    of_problems = {n: float(value) for bold, n, value in rows if "." in n}
    assert of_problems == {number: POINTS[number] for number in course.problems}
    of_parts = [float(value) for bold, n, value in rows if bold]
    assert len(of_parts) == len(course.parts) and sum(of_parts) == sum(of_problems.values())


def check_commands(files: dict[str, str]) -> None:
    for name in (TEXT, "README.md"):
        for target in re.findall(r"(?:^ *|`)make ([a-z]\w*)", files[name], re.MULTILINE):
            assert f"\n{target}:" in files["Makefile"], target
    for name, text in files.items():
        if name.endswith(".py") and text:
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("handout."):
                    path = node.module.replace(".", "/")
                    assert f"{path}.py" in files or f"{path}/__init__.py" in files, name


def test_the_zips_of_parts_1_to_3_hold_these_parts_alone(monkeypatch):
    course = taking("collectives", "benchmarking", "data_parallel")
    monkeypatch.setattr(pack, "course", lambda: course)
    students = {name.removeprefix("lockstep/") for name in pack.handout()}
    checks = {f"tests/test_{name}.py" for name in course.parts}
    assert {name for name in students if name.startswith("tests/")} == checks
    assert not students & {"handout/tensor_parallel.py", "handout/timeline.py"}
    assert {"handout/bandwidth/__main__.py", "handout/clusters/h100.ini"} <= students
    autograder = pack.autograder()
    hidden = {name.rpartition("/")[2] for name in autograder if name.startswith("grader/hidden/")}
    own = {f"test_{name}.py" for name in course.parts}
    also = {"test_all_reduce_from_parts.py", "test_average.py", "test_overlapped_all_reduce.py"}
    also |= {"test_ring.py", "test_stopwatch.py", "test_sweep.py", "test_latency_model.py"}
    also |= {"test_gradient_buckets.py", "collective_problem.py", "benchmark_answers.py"}
    also |= {"bucket_problem.py", "given_tensors.py", "two_calls.py"}
    also |= {"data_parallel_problem.py", "test_data_parallel_step.py", "test_training.py"}
    assert hidden == own | {"__init__.py", "world_sizes.py"} | also
    assert json.loads(autograder["grader/course.json"])["course"]["parts"] == list(course.parts)


def test_every_hidden_file_belongs_to_a_part():
    """A new hidden file must not be packed for a course that does not take its part."""
    taken = {name: set(for_course(everything(), taking(name))) for name in PARTS}
    for file in everything():
        if file.startswith("grader/hidden/") and file not in OF_EVERY_COURSE:
            parts = [name for name, files in taken.items() if file in files]
            assert 1 <= len(parts) < len(PARTS), file


# ——— points


def test_points_and_names_of_a_course_stand_in_the_text():
    course = Course(
        course=About(name="Systems for ML", assignment="Lab 2"),
        points={"1.7": 8.0, "2.3": 2.5},
        extra_credit=ExtraCredit(problems=("3.5",)),
    )
    files = built(course)
    assert files[TEXT].startswith("# Lab 2: the problems\n\nSystems for ML\n\nYou will write")
    assert "| 1.7 | Ring all-reduce | 8 |" in files[TEXT]
    assert "| **1** | **`collectives.py`** | **23** |" in files[TEXT]
    assert "| 2.3 | Sweep | 2.5 |" in files[TEXT] and "**15.5**" in files[TEXT]
    assert "| 3.5 | Buckets that overlap (extra credit) | 6 |" in files[TEXT]
    assert "| 5.6 | The bubble | 2 |\n| **6** | **`" in files[TEXT]
    *first, last = [str(part.number) for part in PARTS.values() if part.is_extra]
    extra = f"Parts {', '.join(first)} and {last} and Problem 3.5 are extra credit"
    number, title = list(list(PARTS.values())[-1].problems.items())[-1]
    row = f"| {number} | {title} | {POINTS[number]:g} |"
    assert f"{row}\n\n{extra}: their points are added to the" in files[TEXT]
    assert files["handout/collectives.py"].startswith('"""Part 1 · Collectives (23 points)')
    assert files["handout/benchmarking.py"].startswith(
        '"""Part 2 · Measuring bandwidth (15.5 points)'
    )


def test_extra_credit_is_told_by_its_rule():
    base = [name for name, part in PARTS.items() if not part.is_extra]
    course = taking(*base, extra_credit=ExtraCredit(problems=("3.5", "5.6")))
    assert extra_credit(course) == (
        "Problems 3.5 and 5.6 are extra credit: their points are added to the 92 points of the"
        " others."
    )
    capped = replace(course, extra_credit=ExtraCredit(("3.5",), UP_TO_THE_TOTAL))
    assert extra_credit(capped).endswith("those of the others, but the sum is at most 94 points.")


def test_parts_of_extra_credit_are_named_and_their_files_are_optional():
    assert extra_credit(taking("collectives", "sharded_data_parallel")) == (
        "Part 6 is extra credit: its points are added to the 20 points of the others. A file of"
        " extra credit is optional."
    )
    assert words(taking("collectives"))["extra"] == ""


# ——— marks


@pytest.mark.parametrize(
    "condition, parts, expected",
    [
        ("3", {3}, True),
        ("3", {4}, False),
        ("not 3", {4}, True),
        ("3 or 4", {4}, True),
        ("3 and 4", {4}, False),
        ("3 and not 4 or 5", {3}, True),
        ("3 and not 4 or 5", {3, 4}, False),
        ("3 and not 4 or 5", {4, 5}, True),
        ("several", {4}, False),
        ("several", {4, 5}, True),
    ],
)
def test_conditions(condition, parts, expected):
    assert holds(condition, parts) is expected


def test_marks_keep_drop_insert_and_write():
    text = "a<!-- with 1 -->b<!-- with 2 -->c<!-- end --><!-- end --><!-- with not 1: d -->"
    assert adapted(text, {1, 2}, {}) == "abc" and adapted(text, {1}, {}) == "ab"
    assert adapted(text, {3}, {}) == "ad"
    assert adapted("<!-- write x -->old<!-- end -->!", {1}, {"x": "new"}) == "new!"
    lines = "a\n\n<!-- with 1 -->\nb\n<!-- end -->\n\nc\n"
    assert adapted(lines, {1}, {}) == "a\n\nb\n\nc\n" and adapted(lines, {2}, {}) == "a\n\nc\n"
    assert adapted("a\n<!-- with 1:\nb\nc\n-->\nd\n", {1}, {}) == "a\nb\nc\nd\n"
    assert adapted_lines("a\n# BEGIN WITH 1\nb\n# END WITH\nc\n", {2}) == "a\nc\n"


@pytest.mark.parametrize(
    "text",
    [
        "<!-- end -->",
        "<!-- with 1 -->",
        "<!-- with one -->a<!-- end -->",
        "<!-- write nothing -->a<!-- end -->",
    ],
)
def test_marks_with_a_mistake_are_refused(text):
    with pytest.raises(BadMarks):
        adapted(text, {1}, {})


@pytest.mark.parametrize("text", ["# BEGIN WITH 1", "# END WITH", "# BEGIN WITH 1\n# BEGIN WITH 2"])
def test_marks_of_lines_with_a_mistake_are_refused(text):
    with pytest.raises(BadMarks):
        adapted_lines(text, {1})


def test_only_long_paragraphs_are_broken_anew():
    long, short = "word " * 60, "short\nlines"
    broken = reflowed(f"{short}\n\n{long.strip()}\n\n```\n{long}\n```\n\n| {long} |\n")
    assert broken.startswith(f"{short}\n\nword") and f"```\n{long}\n```" in broken
    assert f"| {long} |" in broken and max(map(len, broken.splitlines()[3:5])) <= 140


def test_every_written_text_is_used():
    used = set(re.findall(r"<!-- write (\w+) -->", MARKED))
    used |= set(re.findall(r"<!-- write (\w+) -->", everything()["README.md"].decode()))
    assert used == set(words(Course()))
