"""Two records of verdicts are compared check by check."""

from grader.selftest.grading import Graded
from grader.selftest.verdicts import differences, read_verdicts


def test_grading_is_recorded_by_check_with_status_and_points():
    test = {"score": 0, "max_score": 0.5}
    test |= {"extra_data": {"check": "grader/hidden/test_x.py::test_y", "status": "failed"}}
    assert read_verdicts(Graded(0, "", "", {"tests": [test]})) == {"hidden y": "failed 0/0.5"}


def test_failed_grader_is_recorded():
    assert read_verdicts(Graded(3, "", "", {})) == {"the grader": "exit code 3"}


def test_equal_records_do_not_differ():
    assert differences({"a": {"x": "passed"}}, {"a": {"x": "passed"}}) == []


def test_each_difference_is_listed():
    before = {"a": {"x": "passed", "y": "passed"}, "b": {"x": "passed"}}
    after = {"a": {"x": "failed", "z": "passed"}, "c": {"x": "passed"}}
    assert differences(before, after) == [
        "a: x: passed → failed",
        "a: y: passed → not there",
        "a: z: not there → passed",
        "b: only before",
        "c: only after",
    ]
