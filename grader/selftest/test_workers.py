"""Forked workers run every check once, even if some workers end.

They give the same verdicts as fresh interpreters.
"""

import json
import os
import subprocess
import sys

import pytest

from grader.selftest.grading import ROOT, command
from grader.wire import machine_limits
from grader.world.fork_server_client import way_to_start

pytestmark = pytest.mark.skipif(
    way_to_start() != "fork", reason="no fork here: pytest-xdist's workers are used"
)

CHECKS = """
import os, pathlib, signal
import pytest

HERE = pathlib.Path(__file__).parent

@pytest.mark.parametrize("number", range(20))
def test_fine(number):
    (HERE / f"{number} by {os.getpid()}").touch()

def test_wrong():
    assert 1 == 2

def test_dies_once():
    if not (HERE / "died").exists():
        (HERE / "died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
"""
DIES = """
def test_dies():
    os.kill(os.getpid(), signal.SIGKILL)
"""
PROGRAM = """
import json, sys
import pytest
from grader.check.workers import Workers

outcomes = {}

class Follower:
    def pytest_runtest_logreport(self, report):
        if report.when == "call":
            outcomes.setdefault(report.location[2], []).append(report.outcome)

workers = Workers(int(sys.argv[1]))
code = pytest.main(["-p", "no:cacheprovider", "-q", *sys.argv[2:]], [workers, Follower()])
alive = [process.pid for process in workers.processes if process.is_alive()]
print("\\n" + json.dumps([int(code), alive, outcomes]))
"""
FINE = {f"test_fine[{number}]": ["passed"] for number in range(20)}


def run(
    folder, checks: str, many: int, *options: str
) -> tuple[int, list[int], dict[str, list[str]], str]:
    (folder / "test_checks.py").write_text(checks)
    line = [
        sys.executable,
        "-c",
        PROGRAM,
        str(many),
        "--rootdir",
        str(folder),
        *options,
        str(folder),
    ]
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTEST_ADDOPTS": "",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    done = subprocess.run(
        line, env=environment, cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return (*json.loads(done.stdout.splitlines()[-1]), done.stdout)


@pytest.mark.varied
@pytest.mark.parametrize("many", [2, 3, 50])
def test_every_check_is_run_once_though_a_worker_dies(tmp_path, many):
    code, alive, outcomes, printed = run(tmp_path, CHECKS, many)
    assert outcomes == FINE | {"test_wrong": ["failed"], "test_dies_once": ["passed"]}
    assert (code, alive) == (pytest.ExitCode.TESTS_FAILED, [])
    assert "assert 1 == 2" in printed
    at_work = {path.name.partition(" by ")[2] for path in tmp_path.glob("* by *")}
    assert len(at_work) > 1 and len(list(tmp_path.glob("* by *"))) == 20


ROOMS = """
import pathlib, time
import pytest
from gradescope_utils.autograder_utils.decorators import number, visibility, weight

HERE = pathlib.Path(__file__).parent

def takes_a_while(name):
    began = time.monotonic_ns()
    time.sleep(0.02)
    (HERE / f"{name}-{began}-{time.monotonic_ns()}").touch()

@number("1.1")
@weight(1)
@visibility("after_published")
@pytest.mark.parametrize("one", range(8))
def test_hidden(one):
    takes_a_while("hidden")

@number("1.1")
@weight(1)
@visibility("visible")
@pytest.mark.parametrize("one", range(3))
def test_shown(one):
    takes_a_while("shown")
"""


def test_what_is_shown_at_once_has_ended_before_what_is_not_begins(tmp_path):
    _, alive, outcomes, _ = run(tmp_path, ROOMS, 2, "-p", "grader.check.plugin")
    assert len(outcomes) == 11 and alive == []
    times = [path.name.split("-") for path in tmp_path.glob("*-*-*")]
    last = max(int(end) for room, _, end in times if room == "shown")
    assert (
        last < min(int(begin) for room, begin, _ in times if room == "hidden") and len(times) == 11
    )


def test_what_kills_its_workers_is_not_tried_without_end(tmp_path):
    code, alive, outcomes, printed = run(tmp_path, CHECKS + DIES, 4)
    assert outcomes.keys() == FINE.keys() | {"test_wrong", "test_dies_once", "test_dies"}
    assert outcomes["test_dies"] == ["failed"] and "ended before this check" in printed
    assert alive == []
    assert len(list(tmp_path.glob("* by *"))) == 20


def test_with_no_worker_left_it_ends(tmp_path):
    (tmp_path / "died").touch()
    code, alive, outcomes, _ = run(tmp_path, CHECKS + DIES, 2)
    assert outcomes["test_dies"] == ["failed"] and alive == []
    assert code == pytest.ExitCode.TESTS_FAILED


@pytest.mark.long
def test_a_plugin_runs_the_checks_in_workers(tmp_path):
    """This is how ``make test`` runs some checks side by side."""
    (tmp_path / "test_checks.py").write_text(CHECKS)
    line = [sys.executable, "-m", "pytest", "-p", "grader.check.workers", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*line, "-q", "--rootdir", str(tmp_path), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "1 failed, 21 passed" in done.stdout, done.stdout + done.stderr
    at_work = {path.name.partition(" by ")[2] for path in tmp_path.glob("* by *")}
    assert len(at_work) > 1 or machine_limits.workers() == 1
    assert len(list(tmp_path.glob("* by *"))) == 20


SLOW_THEN_QUICK = """
import time

def test_first():
    time.sleep(0.5)
    assert False

def test_second():
    assert False
"""


@pytest.mark.long
def test_failures_are_printed_in_the_order_of_the_problems(tmp_path):
    (tmp_path / "test_checks.py").write_text(SLOW_THEN_QUICK)
    plugins = ["-p", "grader.check.plugin", "-p", "grader.check.workers", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "-rN", "-q", "--rootdir", *[str(tmp_path)] * 2],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    printed = done.stdout
    assert "2 failed" in printed, printed + done.stderr
    assert 0 < printed.index("_ test_first _") < printed.index("_ test_second _"), printed


def test_what_cannot_be_collected_is_not_run(tmp_path):
    code, alive, outcomes, printed = run(tmp_path, CHECKS + "\nraise KeyError('here')", 2)
    assert (code, alive, outcomes) == (pytest.ExitCode.INTERRUPTED, [], {})
    assert "KeyError: 'here'" in printed


@pytest.mark.long
def test_forked_workers_and_fresh_interpreters_find_the_same(tmp_path):
    """The solutions contain one mistake and one stub."""
    submission = tmp_path / "submission"
    submission.mkdir()
    source = (ROOT / "solutions" / "collectives.py").read_text()
    wrong = (
        "\n\ndef average(tensor):\n    return tensor\n\n\ndef shift_right(tensor):\n    raise"
        " NotImplementedError('1.6')\n"
    )
    (submission / "collectives.py").write_text(source + wrong)
    found = {}
    for way, workers in (("fork", "1"), ("fork", "3"), ("spawn", "2")):
        results = tmp_path / f"{way}{workers}.json"
        options = [
            "--problem",
            "1.2",
            "--problem",
            "1.4",
            "--problem",
            "1.6",
            "--seed",
            "5",
            "--workers",
            workers,
        ]
        done = subprocess.run(
            **command(submission, results, *options, LOCKSTEP_START=way),
            capture_output=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        document = json.loads(results.read_text())
        assert document["extra_data"]["workers"] == int(workers)
        found[way, workers] = {
            test["extra_data"]["check"]: (test["score"], test["extra_data"]["status"])
            for test in document["tests"]
        }
    one, *others = found.values()
    assert {status for _, status in one.values()} == {"passed", "failed", "not implemented"}
    assert all(other == one for other in others)
