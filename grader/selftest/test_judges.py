"""Whatever ranks return, a check says what is wrong with it: no judge raises anything else."""

import os

import pytest
from hypothesis import HealthCheck, given, settings

from grader.assignment import PARTS
from grader.face import CheckFailed
from grader.selftest.fuzz_judges import Recorded, changes
from grader.selftest.grading import ROOT
from grader.selftest.proof.checks import Checks
from grader.worlds.server_process import Server

PROVE = bool(os.environ.get("LOCKSTEP_PROVE"))
EXAMPLES = int(os.environ.get("LOCKSTEP_EXAMPLES", 200 if PROVE else 3))  # of each check
FUZZ = settings(  # `make test` tries the same ones every time
    max_examples=EXAMPLES,
    derandomize=not PROVE,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def checks(_run):
    return Checks(Server(_run["server"]))


@pytest.mark.parametrize("part", PARTS)
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
    assert failed > EXAMPLES * len(checks.parts[part]) / 3  # else the changes would change nothing
