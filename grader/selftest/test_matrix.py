"""`make matrix` tries the ends of the supported range. A wrong score is no failed attempt."""

import os
import re
import sys

import pytest

from grader import version
from grader.selftest import matrix
from grader.selftest.grading import ROOT
from grader.selftest.matrix import POINTS, Outcome

RIGHT = Outcome(60.0, "2.13.0+cpu", (POINTS, 0))


def test_the_oldest_and_the_newest_are_paired():
    found = matrix.pairs(["3.10", "3.11", "3.13"], everything=False)
    assert found == [("3.10", "2.8.0"), ("3.10", "2.14.1"), ("3.13", "2.8.0"), ("3.13", "2.14.1")]
    assert len(matrix.pairs(["3.10", "3.11", "3.13"], everything=True)) == 6
    assert matrix.pairs(["3.11"], everything=False) == [("3.11", "2.8.0"), ("3.11", "2.14.1")]


def test_the_range_is_the_one_that_the_requirements_promise():
    promised = (ROOT / "handout" / "requirements.txt").read_text()
    words = re.search(r"any version from ([\d.]+) to ([\d.]+)\.", promised).groups()
    assert words == tuple(tested.rpartition(".")[0] for tested in version.TESTED_TORCH)
    pinned = re.search(r"^torch==([\d.]+)$", promised, re.MULTILINE)[1]
    assert version._minor(words[0]) <= version._minor(pinned) <= version._minor(words[1])


@pytest.mark.parametrize(
    "installed, is_told",
    [
        *[("2.8.0", False), ("2.13.0+cpu", False), ("2.14.9+cu130", False), ("a build", False)],
        *[("2.7.1", True), ("2.15.0", True), ("3.0.0", True)],
    ],
)
def test_a_version_of_torch_that_nobody_has_tested_is_told(installed, is_told, monkeypatch):
    monkeypatch.setattr(version.metadata, "version", lambda name: installed)
    told = version.untested_torch()
    assert bool(told) is is_told and (installed in told) is is_told


def test_only_pythons_that_run_are_found(tmp_path, monkeypatch):
    fake = tmp_path / "versions" / "3.12.9" / "bin" / "python3.12"
    fake.parent.mkdir(parents=True)
    fake.write_text("#!/bin/sh\nexit 127\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", os.path.dirname(sys.executable))
    assert str(fake) not in matrix.pythons().values()


@pytest.mark.long
def test_a_torch_that_cannot_be_had_is_told_and_nothing_is_left(tmp_path, monkeypatch):
    for name, value in {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": "",
        "TORCH_INDEX": "",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(matrix.tempfile, "tempdir", str(tmp_path))
    outcome = matrix.attempt(sys.executable, "2.8.0")
    assert outcome.scores is None and not outcome.wrong
    assert outcome.failure.startswith("could not be installed: pip found no build for this Python")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "outcome, code, words",
    [
        (RIGHT, 0, "as it should be"),
        (Outcome(60.0, "2.8.0", (99.5, 0)), 1, "wrong"),
        (Outcome(60.0, "2.8.0", (POINTS, 1)), 1, "wrong"),
        (Outcome(failure="could not be installed: no"), 2, "could not be installed: no"),
    ],
)
def test_a_wrong_score_fails_and_what_was_not_tried_is_named(
    monkeypatch, capsys, outcome, code, words
):
    monkeypatch.setattr(matrix, "pythons", lambda: {"3.11": sys.executable})
    monkeypatch.setattr(matrix, "attempt", lambda python, torch: outcome)
    monkeypatch.setattr(sys, "argv", ["matrix"])
    assert matrix.main() == code
    shown = capsys.readouterr().out
    assert (
        words in shown
        and "Not tried, as it is not on this machine: Python 3.10, 3.12, 3.13, 3.14." in shown
    )
