"""The numbers of checks: right by hand, by an independent formula, and not distorted by stubs."""

import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.assignment import PARTS
from grader.check.record import ERROR, FAILED, NOT_RUN, PASSED, SKIPPED, UNIMPLEMENTED
from grader.course.item_analysis import (
    at_most,
    discrimination,
    histogram,
    items,
    point_biserial,
    quartiles,
)
from grader.course.outcomes import in_order, read
from grader.course.results import GRADED, SubmissionResult
from grader.course.submissions import Submission
from grader.intake import staging
from grader.selftest.course_class import entry, result


def column(*values) -> np.ndarray:
    return np.array(values, dtype=bool)


def course(*rows: str, points: tuple[float, ...] = ()):
    """Return a course from one word per submission, with one letter per check.

    A check with p has passed, with f failed, and with u it is a stub. The letters s, e and n are
    other statuses. A check with - is absent.
    """
    status = dict(p=PASSED, f=FAILED, u=UNIMPLEMENTED, s=SKIPPED, e=ERROR, n=NOT_RUN)
    worth = points or (1.0,) * 99
    return read(
        result(
            [
                entry(f"c{i}", "1.1", status[c], "x", worth[i])
                for i, c in enumerate(row)
                if c != "-"
            ],
            str(number),
        )
        for number, row in enumerate(rows)
    )


def test_correlation_is_that_of_pearson_between_passing_and_the_rest():
    passed, rest = column(1, 1, 0, 1, 0, 0), np.array([0.9, 0.7, 0.6, 0.5, 0.2, 0.1])
    assert point_biserial(passed, rest) == pytest.approx(
        statistics.correlation([1, 1, 0, 1, 0, 0], rest.tolist())
    )
    assert point_biserial(~passed, rest) == pytest.approx(-point_biserial(passed, rest))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20)), min_size=2, max_size=40))
def test_correlation_follows_the_formula_of_the_legend(pairs):
    passed, rest = column(*(p for p, _ in pairs)), np.array([r / 20 for _, r in pairs])
    r = point_biserial(passed, rest)
    if passed.all() or not passed.any() or len(set(rest)) == 1:
        assert r is None
        return
    p, s = passed.mean(), rest.std()
    expected = (rest[passed].mean() - rest[~passed].mean()) / s * math.sqrt(p * (1 - p))
    assert r == pytest.approx(expected, abs=1e-9) and -1 - 1e-9 <= r <= 1 + 1e-9


@pytest.mark.parametrize(
    ("passed", "rest"),
    [
        ((1, 1, 1), (0.1, 0.5, 0.9)),
        ((0, 0, 0), (0.1, 0.5, 0.9)),
        ((1, 0, 1), (0.5, 0.5, 0.5)),
        ((), ()),
    ],
)
def test_constant_columns_have_no_correlation(passed, rest):
    assert point_biserial(column(*passed), np.array(rest)) is None


def test_discrimination_compares_the_upper_with_the_lower_27_percent():
    rest = np.arange(100) / 100
    assert discrimination(rest >= 0.73, rest) == pytest.approx(1)
    assert discrimination(rest < 0.27, rest) == pytest.approx(-1)
    # The submissions between the groups do not matter.
    assert discrimination((rest >= 0.27) & (rest < 0.73), rest) == pytest.approx(0)
    # 13 of the 27 submissions in the upper group pass, and none in the lower group.
    assert discrimination(rest >= 0.87, rest) == pytest.approx(13 / 27)
    # A group of 2.7 submissions is two whole ones and 0.7 of the third.
    assert discrimination(np.arange(10) == 7, np.arange(10)) == pytest.approx(0.7 / 2.7)


def test_submissions_with_an_equal_rest_count_with_equal_fractions():
    rest = np.array([1.0] * 50 + [0.5] * 40 + [0.0] * 10)
    passed = column(*[1, 0] * 25, *[0] * 50)  # half of the submissions that tie at the top
    assert discrimination(passed, rest) == pytest.approx(0.5)
    order = np.random.default_rng(1).permutation(100)
    assert discrimination(passed[order], rest[order]) == pytest.approx(0.5)
    assert discrimination(passed, np.ones(100)) is None


def test_stubs_and_what_was_not_run_count_neither_for_a_check_nor_in_the_rest():
    found = items(course("ppp", "pff", "upp", "spp", "epp", "npp", "-pp"))[0]
    assert found.count == 2 and found.unimplemented == 1 and found.difficulty == 1
    # The first two submissions pass 2 of 2 and 0 of 2 other checks. If stubs counted as zeros, the
    # third submission of the next course would be as weak as the second.
    found = items(course("ppp", "pff", "ppu"))[0]
    assert found.rest.tolist() == [1, 0, 1]


def test_a_stub_does_not_change_the_numbers_of_the_others():
    rows = ["ppfp", "pfff", "fppp", "ffff", "ppff"] * 3
    before, after = items(course(*rows)), items(course(*rows, *["uuuu"] * 30))
    for one, other in zip(before, after):
        assert (one.count, one.difficulty) == (other.count, other.difficulty)
        assert (one.discrimination, one.correlation) == (other.discrimination, other.correlation)


def test_the_rest_is_weighed_by_points_and_leaves_the_check_itself_out():
    first, second, third = items(course("pfp", "fpp", points=(1, 2, 5)))
    assert first.rest.tolist() == pytest.approx([5 / 7, 1])
    assert second.rest.tolist() == pytest.approx([1, 5 / 6], abs=1e-8)
    assert third.rest.tolist() == pytest.approx([1 / 3, 2 / 3], abs=1e-8)


def test_who_tried_nothing_else_does_not_count():
    assert items(course("puu", "fuu", "ppu"))[0].count == 1
    assert items(course("p", "f"))[0].count == 0


def test_an_upper_bound_holds_in_19_of_20_courses():
    rng, r, size, below = np.random.default_rng(5), 0.3, 60, 0
    for _ in range(2000):
        x = rng.normal(size=size)
        y = r * x + math.sqrt(1 - r * r) * rng.normal(size=size)
        below += at_most(np.corrcoef(x, y)[0, 1], size) < r
    assert 0.035 < below / 2000 < 0.065
    assert at_most(0.0, 3) == 1 and at_most(-1.0, 10) < -0.99 and at_most(1.0, 10) <= 1


def test_quartiles_and_histograms():
    assert quartiles(np.array([0, 10, 20, 30, 40])) == (10, 20, 30)
    assert quartiles(np.array([7.0])) == (7, 7, 7)
    assert histogram(np.array([0, 4.9, 5, 99.9, 100]), 100, 20) == [2, 1, *[0] * 16, 0, 2]
    assert histogram(np.array([]), 100, 4) == [0, 0, 0, 0]
    assert histogram(np.array([0.0, 0.0]), 0, 2) == [2, 0]


def test_problems_are_in_the_order_of_their_numbers():
    assert sorted(["1.10", "10.1", "1.9", "2.1", "x", "1.2.b", ""], key=in_order) == [
        "1.2.b", "1.9", "1.10", "2.1", "10.1", "", "x",
    ]  # fmt: skip


BROKEN = [
    None, 7, "x", [], {}, {"extra_data": 3}, {"extra_data": {}},
    *(entry("c", "1.1", PASSED) | change for change in (
        {"score": "1"}, {"score": float("nan")}, {"score": True}, {"score": -1}, {"max_score": None},
        {"max_score": float("inf")}, {"number": 1.1}, {"name": None}, {"output": ["x"]},
        {"extra_data": {"check": "c", "status": "won"}}, {"extra_data": {"check": "", "status": PASSED}},
        {"extra_data": {"check": ["c"], "status": PASSED}}, {"extra_data": {"check": "c", "status": []}},
    )),
]  # fmt: skip


@pytest.mark.parametrize("broken", BROKEN, ids=repr)
def test_an_entry_that_cannot_be_read_is_counted_and_left_out(broken):
    whole = result([entry("a", "1.1", PASSED), broken, entry("b", "1.1", FAILED)])
    (found,) = read([whole]).graded
    assert set(found.outcomes) == {"a", "b"} and found.unreadable == 1 and found.points == 1


@pytest.mark.parametrize("document", [{}, [], None, {"tests": None}, {"tests": {"a": 1}}])
def test_a_document_that_cannot_be_read_is_damaged(document):
    broken = result([])
    broken.document = document
    found = read([broken, result([entry("a", "1.1", PASSED)], "2")])
    assert [one.result.submission.id for one in found.damaged()] == ["1"]
    assert [check.id for check in found.checks] == ["a"]


def test_a_check_that_comes_twice_counts_once():
    (found,) = read([result([entry("a", "1.1", PASSED), entry("a", "1.1", PASSED)])]).graded
    assert found.points == 1 and found.unreadable == 1


def test_a_file_that_was_not_handed_in_counts_as_a_stub(tmp_path):
    (tmp_path / "empty").mkdir()
    for part, reason in staging.read(tmp_path / "empty").absent.items():
        status = "not attempted" if PARTS[part].is_extra else "failed"
        test = {
            **{"number": "1.1", "name": "a · b", "score": 0.0, "max_score": 1.0, "output": reason},
            "extra_data": {"check": "c", "status": status},
        }
        [one] = read([SubmissionResult(Submission("a"), GRADED, document={"tests": [test]})]).graded
        assert one.outcomes["c"].status == UNIMPLEMENTED
