"""``make gpu-check`` without a GPU prints a sentence. Its steps run on a CPU here."""

import subprocess
import sys

import pytest

from grader.selftest import gpu_check
from grader.selftest.gpu_check import Check
from grader.selftest.grading import ROOT


@pytest.mark.long
def test_without_a_gpu_it_says_so():
    line = [sys.executable, "-m", "grader.selftest.gpu_check"]
    done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2 and not done.stdout
    assert done.stderr.startswith("no GPU can be used here: ") and done.stderr.count("\n") == 1


def test_a_step_that_fails_hides_no_other(monkeypatch):
    def works(self):
        yield "step", "tried", "works"

    def fails(self):
        yield "step", "tried first", "works"
        raise OSError("no such program: nvidia-smi")

    for name in ("first_use", "forks", "tiers", "deadlock", "stopwatch", "grading"):
        monkeypatch.setattr(Check, name, works)
    for name in ("stream_order", "sharing"):
        monkeypatch.setattr(Check, name, works)
    monkeypatch.setattr(Check, "facts", fails)
    told: list[str] = []
    rows = Check(None).all(told.append)
    assert rows[:2] == [
        ("step", "tried first", "works"),
        ("facts", "this step failed", "OSError: no such program: nvidia-smi"),
    ]
    assert len(rows) == 10 and len(told) == 9
    assert gpu_check.table(rows).row_count == 10


@pytest.mark.long
def test_programs_that_fail_or_hang_are_told():
    programs = ["print('right')", "raise ValueError('wrong')", "import time; time.sleep(60)"]
    ends = gpu_check.run(programs, [{}] * 3, seconds=2)
    assert ends == ["right", "ValueError: wrong", "not within 2 s"]


@pytest.mark.long
def test_steps_on_a_cpu():
    check = Check(None, "cpu")
    (row,) = check.deadlock()
    assert "Deadlock" in row[2] and "collectives.py" in row[2]
    assert [came for _, _, came in check.forks()] == ["works"] * 3
    sizes = [tried for _, tried, came in check.stopwatch() if came.endswith("= 1.00")]
    assert len(sizes) == 6
    assert check._operations("gloo", lambda rank: {}, 2, 1) == "all work"
    assert check._operations("nothing", lambda rank: {}, 2, 1).startswith("all_reduce: ")
