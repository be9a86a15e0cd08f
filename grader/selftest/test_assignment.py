"""What students read agrees with what is graded: problems, titles, points."""

import re
from collections import Counter

import pytest

from grader.assignment import FILES, GIVEN, PARTS, POINTS
from grader.check.check_metadata import candidate, network_of, record_of
from grader.check.selection import chosen
from grader.selftest.grading import ROOT
from grader.selftest.mutation.checks import Checks

TEXT = (ROOT / "handout" / "ASSIGNMENT.md").read_text()
ROW = re.compile(r"^\| \**(\d(?:\.\d)?)\** \| ([^|]*) \| \**(\d+(?:\.\d+)?)\** \|$", re.MULTILINE)
TABLE = {number: (title.strip("*`"), float(points)) for number, title, points in ROW.findall(TEXT)}


# The problems whose functions communicate. Problem 1.2 has only barriers, so it is left out: the
# barriers on gloo are in 2.2.
COMMUNICATING = {
    *(
        "1.1",
        "1.3",
        "1.4",
        "1.5",
        "1.6",
        "1.7",
        "2.2",
        "3.2",
        "3.3",
        "3.4",
        "3.5",
        "4.2",
        "4.3",
        "4.4",
    ),
    *("5.2", "5.3", "5.5"),
    *("6.2", "6.3", "6.4"),
    *("7.1", "7.2"),
    *("8.2", "8.3"),
    *("9.1", "9.2", "9.3"),
}


EXTRA = {
    "sharded_data_parallel": 12,
    "device_mesh": 8,
    "schedules": 8,
    "sequence_and_experts": 12,
}  # the points of each part of extra credit


@pytest.fixture(scope="module")
def checks(grading_session) -> list[pytest.Function]:
    """Return every check of the assignment."""
    return [
        item for checks in Checks(grading_session.server).parts.values() for item in checks.values()
    ]


@pytest.fixture(scope="module")
def points(checks) -> Counter:
    """Return the points of each problem, from the decorators of its checks."""
    found: Counter[str] = Counter()
    for item in checks:
        found[record_of(item).number] += record_of(item).points
    return found


def test_one_check_of_each_problem_that_communicates_is_on_gloo(checks):
    on_gloo = [item for item in checks if network_of(item.function) == "gloo"]
    assert {record_of(item).number for item in on_gloo} == COMMUNICATING
    # Ranks on gloo can open sockets, also to other worlds. So a public check on gloo could show
    # what a hidden check says.
    assert all(record_of(item).visibility != "visible" for item in on_gloo)


def test_the_points_of_all_checks_are_a_hundred_and_those_of_extra_credit(points):
    of_extra_parts = {n for part in PARTS.values() if part.is_extra for n in part.problems}
    assert sum(points[number] for number in points.keys() - of_extra_parts) == 100
    for name, due in EXTRA.items():
        assert sum(points[number] for number in PARTS[name].problems) == due
    assert {name for name, part in PARTS.items() if part.is_extra} == set(EXTRA)


def test_the_points_that_are_listed_are_those_of_the_checks(points):
    assert points == POINTS


def test_the_table_that_students_read_has_the_points_of_the_checks(points):
    problems = {number: points for number, (_, points) in TABLE.items() if "." in number}
    assert problems == points


def test_the_points_of_a_part_are_those_of_its_problems():
    for part in PARTS.values():
        assert TABLE[str(part.number)][1] == sum(
            points for number, (_, points) in TABLE.items() if number in part.problems
        )


def test_titles_stand_in_one_way():
    for name, part in PARTS.items():
        assert TABLE[str(part.number)][0] == f"{name}.py"
        assert {
            number: title for number, (title, _) in TABLE.items() if number in part.problems
        } == part.problems


def test_the_files_that_the_assignment_lists_are_there():
    for name in (*FILES, *GIVEN):
        assert (ROOT / "handout" / name).is_file()
    for name in FILES:
        assert (ROOT / "solutions" / name).is_file()


def test_the_first_hour_counts_the_checks_as_make_test_does(checks):
    public = [item for item in checks if item.path == ROOT / "tests" / "test_collectives.py"]
    of_broadcast = chosen("broadcast", map(candidate, public))
    assert f"`{len(public)} not implemented`" in TEXT
    assert f"When it prints `{len(of_broadcast)} passed`" in TEXT


def test_readme_quotes_failed_checks_with_their_titles_and_points(checks):
    quoted = re.findall(
        r"^    (\d\.\d) (.+)  failed, −([\d.]+)$", (ROOT / "README.md").read_text(), re.MULTILINE
    )
    records = [record_of(item) for item in checks]
    known = [(record.number, record.name, f"{record.points:g}") for record in records]
    assert len(quoted) == 3
    for line in quoted:
        assert line in known
