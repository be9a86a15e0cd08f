"""An exception in a check is a failed check if a rank's value leads to it.

If no value of a rank does, the exception is the grader's fault.
"""

import time
from pathlib import Path

import numpy as np
import pytest

from grader.check.api import CheckFailed, CheckWorld, GraderFault, call
from grader.check.run_check import judge
from grader.world.report import Raised, RankReport, Returned, WorldReport

X = np.array([1.0, 2.0], np.float32)


def world(value, calls=()) -> CheckWorld:
    """Return a world in which every rank returns ``value``."""

    def runner(size, calls):
        ranks = [
            RankReport(r, outcomes={i: Returned(value, [], {}) for i in range(len(calls))})
            for r in range(size)
        ]
        return WorldReport(size, calls, Path("/nowhere"), ranks, ending="finished")

    return CheckWorld(runner)


def run(check, value) -> None:
    judge(check, {"world": world(value), "rng": np.random.default_rng(0)}, seconds=0.3)


def test_what_a_check_says_is_what_is_said():
    def check(world, rng):
        (run,) = world(1, call("collectives.f"))
        run.returns(X)

    run(check, X)
    with pytest.raises(CheckFailed, match="expected a tensor of shape"):
        run(check, None)


@pytest.mark.parametrize(
    "value",
    [None, {"a": "text"}, {"a": None}, {}, 2**63, float("nan"), [], np.zeros(3), "text"],
    ids=repr,
)
def test_what_only_a_ranks_value_leads_to_is_a_failed_check(value):
    def check(world, rng):
        (run,) = world(1, call("collectives.f"))
        (got,) = run.values()
        run.require(got["a"] + int(rng.integers(9)) >= 0, "never said")

    run(check, {"a": 1})
    with pytest.raises(CheckFailed) as failure:
        run(check, value)
    message = str(failure.value)
    assert "cannot be judged" in message and "rank 0 returned " in message
    # The exception of the judge is not for students.
    told = failure.value.finding.for_instructor
    assert f"in {Path(__file__).name}:" in told
    assert "instructor" not in message and told.partition(":")[0] not in message
    assert Path(__file__).name not in message


def test_it_is_also_after_a_comparison():
    def check(world, rng):
        (run,) = world(1, call("collectives.f"))
        run.returns(X, otherwise="what it may be")
        [][len(run.marks(0, "as often as the rank says"))]

    with pytest.raises(CheckFailed, match="cannot be judged"):
        run(check, X)


def before_the_ranks(world, rng):
    [][0]


def after_the_ranks(world, rng):
    (run,) = world(1, call("collectives.f"))
    run.values()
    [][0]


def in_the_expected_values(world, rng):
    (run,) = world(1, call("collectives.f"))
    run.returns(X.reshape(3, 3))


def in_the_comparison(world, rng):
    class Odd(np.ndarray):
        def astype(self, *_):
            raise IndexError("ours")

    (run,) = world(1, call("collectives.f"))
    run.returns(X.view(Odd))


def after_a_comparison(world, rng):
    (run,) = world(1, call("collectives.f"))
    run.returns(X)
    run.keeps_inputs()
    [][int(rng.integers(5))]


def in_a_name(world, rng):
    (run,) = world(1, call("collectives.f"))
    run.returns(X, select=lambda value: nothing_of_this_name)  # noqa: F821


OURS = [
    before_the_ranks,
    after_the_ranks,
    in_the_expected_values,
    in_the_comparison,
    after_a_comparison,
    in_a_name,
]


@pytest.mark.parametrize("check", OURS)
def test_what_happens_with_right_values_too_is_our_fault(check):
    for value in (X, None) if check not in (in_the_comparison, after_a_comparison) else (X,):
        with pytest.raises((IndexError, ValueError, NameError)):
            run(check, value)


def test_what_fails_while_ranks_are_at_work_is_our_fault():
    def runner(size, calls):
        raise OSError("no descriptors left")

    with pytest.raises(OSError, match="no descriptors left"):
        judge(after_the_ranks, {"world": CheckWorld(runner), "rng": None})


def test_a_fault_of_the_grader_stays_one():
    def check(world, rng):
        (run,) = world(1, call("collectives.f"))
        run.returns(X, X)

    with pytest.raises(GraderFault, match="2 expected values for 1 ranks"):
        run(check, X)


REFUSAL = Raised("ValueError", "no", [], is_value_error=True, stub=False, missing=False, at=0)


@pytest.mark.parametrize(
    "outcome, error, words",
    [(None, GraderFault, "it failed"), (Returned(1, [], {}), CheckFailed, "rank 1 returned int 1")],
)
def test_missing_value_error_is_a_fault_of_the_grader_that_failed(outcome, error, words):
    """If the grader failed, a student must not hear that a rank did not return."""

    def runner(size, calls):
        outcomes = [{0: REFUSAL}, {0: outcome} if outcome else {}]
        ranks = [RankReport(rank, outcomes=own) for rank, own in enumerate(outcomes)]
        return WorldReport(size, calls, Path(), ranks, ending="lost", grader_fault="it failed")

    def check(world):
        (run,) = world(2, call("collectives.f", may_raise=True))
        run.raises_value_error()

    with pytest.raises(error, match=words):
        judge(check, {"world": CheckWorld(runner)})


@pytest.mark.parametrize("place", ["check", "part"])
def test_judging_without_end_is_stopped(place):
    def busy(value):
        while True:
            pass

    def check(world, rng):
        (run,) = world(1, call("collectives.f"))
        run.returns(X, select=busy) if place == "part" else busy(run.values())

    began = time.process_time()
    with pytest.raises(CheckFailed, match="take more than 0.3 seconds to judge"):
        run(check, X)
    assert time.process_time() - began < 5


@pytest.mark.long
def test_the_ranks_own_time_is_not_the_judges():
    start = world(X).runner

    def slow(size, calls):
        until = time.process_time() + 0.6
        while time.process_time() < until:
            pass
        return start(size, calls)

    def check(world, rng):
        for _ in range(2):
            (run,) = world(1, call("collectives.f"))
            run.returns(X)

    judge(check, {"world": CheckWorld(slow), "rng": None}, seconds=0.3)
