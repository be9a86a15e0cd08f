"""Which cases of a campaign are tried: one of each kind, a sample that can be repeated, or all."""

import os
import re
import subprocess
import sys

import pytest

from grader.selftest import sampling
from grader.selftest.grading import ROOT
from grader.selftest.hostile_reader import CASES

NUMBERS = [str(number) for number in range(2000)]


@pytest.fixture
def choose(monkeypatch):
    """Choose from NUMBERS, which are of ten kinds, with this extent and seed."""

    def choose(extent: str, seed: str = "", share: float = 0.25) -> list[str]:
        monkeypatch.setattr(sampling, "EXTENT", extent)
        monkeypatch.setattr(sampling, "SEED", seed)
        return sampling.tried(NUMBERS, str, lambda number: number[-1], share)

    return choose


def test_the_first_of_each_kind_is_tried_unless_more_is_asked_for(choose):
    assert choose(sampling.FIRST) == choose(sampling.UNSET) == NUMBERS[:10]
    assert choose(sampling.ALL) == NUMBERS


def test_a_sample_follows_from_its_seed_and_has_its_share(choose):
    one = choose(sampling.SAMPLE, "7")
    assert one == choose(sampling.SAMPLE, "7") != choose(sampling.SAMPLE, "8")
    assert 400 < len(one) < 600
    assert choose(sampling.SAMPLE, "7", share=0) == [] and one == sorted(one, key=int)
    assert set(one) < set(choose(sampling.SAMPLE, "7", share=0.5)), "a larger share holds it"


def test_every_case_is_in_some_sample(choose):
    found = {number for seed in range(60) for number in choose(sampling.SAMPLE, str(seed))}
    assert found == set(NUMBERS)


def test_make_test_leaves_out_long_tests_and_a_sample_some(choose):
    def left(extent: str) -> int:
        choose(extent, "7")
        return sum(sampling.is_left_out(number) for number in NUMBERS)

    assert (left(sampling.FIRST), left(sampling.ALL), left(sampling.UNSET)) == (2000, 0, 0)
    assert abs(left(sampling.SAMPLE) / 2000 - (1 - sampling.LONG_SHARE)) < 0.05


def test_make_test_tries_variants_at_equal_distances_and_a_sample_some(choose):
    def tried(extent: str, count: int) -> list[str]:
        choose(extent, "7")
        return sampling.variants(NUMBERS, str, count)

    assert tried(sampling.FIRST, 1) == ["0"]
    assert tried(sampling.FIRST, 4) == ["0", "500", "1000", "1500"]
    assert tried(sampling.FIRST, 3000) == tried(sampling.ALL, 1) == NUMBERS
    assert tried(sampling.UNSET, 1) == NUMBERS
    assert abs(len(tried(sampling.SAMPLE, 1)) / 2000 - sampling.LONG_SHARE) < 0.05


def collected(**environment: str) -> list[str]:
    """Return the hostile cases that pytest would run."""
    line = [sys.executable, "-m", "pytest", "-n", "0", "--collect-only"]
    done = subprocess.run(
        [*line, "grader/selftest/test_hostile.py"],
        cwd=ROOT,
        env=os.environ | {"LOCKSTEP_CASES": "first"} | environment,
        capture_output=True,
        text=True,
    )
    return re.findall(r"test_a_hostile_submission\[(.*?)\]", done.stdout) or [
        done.stdout + done.stderr
    ]


@pytest.mark.long
def test_make_test_tries_a_hostile_submission_of_each_threat():
    named = {case.name: case.threat for case in CASES}
    tried = [name.removeprefix("best-") for name in collected()]
    assert sorted(named[name] for name in tried) == sorted(set(named.values()))
    sample = collected(LOCKSTEP_CASES="sample", LOCKSTEP_SAMPLE_SEED="1")
    assert not {name.removeprefix("best-") for name in sample} <= set(tried)
    assert sample != collected(LOCKSTEP_CASES="sample", LOCKSTEP_SAMPLE_SEED="2")


@pytest.mark.long
def test_a_word_that_is_none_of_the_three_is_refused():
    assert (
        "LOCKSTEP_CASES=many: there are first, sample and all"
        in collected(LOCKSTEP_CASES="many")[0]
    )
