"""Whatever ranks return, a check says what is wrong. No judge raises another exception."""

import os

import pytest
from hypothesis import HealthCheck, given, settings

from grader.assignment import PARTS
from grader.check.api import CheckFailed, CheckWorld
from grader.check.input_rng import make_rng
from grader.check.run_check import _is_ours
from grader.selftest.fuzz_judges import Recorded, changes
from grader.selftest.grading import ROOT
from grader.selftest.mutation.checks import Checks
from grader.selftest.sampling import EXTENT, FIRST, UNSET, count, tried

pytestmark = pytest.mark.campaign

# of each check
EXAMPLES = int(os.environ.get("LOCKSTEP_EXAMPLES", count(first=1, sample=3, whole=200)))
FUZZ = settings(  # `make test` tries the same examples every time
    max_examples=EXAMPLES,
    derandomize=EXTENT in (FIRST, UNSET),
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def checks(grading_session):
    return Checks(grading_session.server)


@pytest.mark.varied(2)
@pytest.mark.parametrize("part", PARTS)
def test_no_check_raises_where_every_value_is_as_expected(checks, part):
    """An exception that a rank's value causes must not count as a fault of the grader."""
    for name, item in checks.parts[part].items():
        arguments = {
            "world": CheckWorld(None, facts=lambda: {"torch": "2.13.0"}),
            "rng": make_rng(7, item.nodeid),
        }
        arguments |= item.callspec.params if hasattr(item, "callspec") else {}
        arguments = {name: arguments[name] for name in item._fixtureinfo.argnames}
        assert "world" not in arguments or not _is_ours(
            item.function, arguments, arguments["world"], 60.0
        ), name


def make_all(seed: int) -> list[float]:
    return [make_rng(seed, check).standard_normal() for check in ("one", "another")]


def test_inputs_follow_from_the_seed_and_the_check_and_from_all_of_the_seed():
    assert make_all(5) == make_all(5)
    seeds = (5, -5, 5 + (1 << 32), 5 + (1 << 127), 1 << 600)
    assert len({value for seed in seeds for value in make_all(seed)}) == 2 * len(seeds)


@pytest.mark.long
@pytest.mark.parametrize("part", tried(PARTS, str, lambda part: "any", share=1.0))
def test_no_value_of_a_rank_makes_a_judge_raise(checks, part):
    failed = 0
    with checks.staged(part, (ROOT / "solutions" / f"{part}.py").read_text()) as staged:
        for name in checks.parts[part]:
            recorded = Recorded(checks, staged, name)

            @FUZZ
            @given(changes(recorded))
            def judge(changed):
                nonlocal failed
                try:
                    recorded.again(changed.reports)
                except CheckFailed as failure:
                    failed += 1
                    assert len(str(failure)) > 10

            judge()
    assert failed > EXAMPLES * len(checks.parts[part]) / 3  # otherwise the changes have no effect
