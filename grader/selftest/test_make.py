"""The Makefile hands over values as they are: paths and words are no commands.

This applies to all characters.
"""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grader.selftest.grading import ROOT

NASTY = [
    "a'; touch pwned; echo 'b.zip",
    "O'Brien.zip",
    'a"; touch pwned; echo "b.zip',
    "$(shell touch pwned)",
    "$$(touch pwned)",
    "`touch pwned`",
    "${HOME}",
    "-rf",
    "two words",
    # make drops blanks in front of a value on its command line, but not of one in the environment.
    # So the blanks are at the end.
    "blanks  ",
    "a#b%c\\d*e?.zip",
    "a\nb",
    "a=b",
    "Übung/数.zip",
]


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    """Return ``asked(target, NAME=value, …)``: the arguments with which the target calls Python.

    Another program plays Python.
    """
    folder = tmp_path_factory.mktemp("make")
    told, player = folder / "told", folder / "player"
    player.write_text(
        f"#!{sys.executable}\nimport sys\nopen({str(told)!r}, 'w',"
        " newline='').write('\\0'.join(sys.argv[1:]))\n"
    )
    player.chmod(0o755)

    def ask(target: str, by_environment: bool = False, **values: str) -> list[str]:
        told.unlink(missing_ok=True)
        (folder / "pwned").unlink(missing_ok=True)
        line = ["make", "-s", "-f", str(ROOT / "Makefile"), target, f"PY={player}"]
        line += [] if by_environment else [f"{name}={value}" for name, value in values.items()]
        environment = {name: os.environ[name] for name in ("PATH", "HOME")} | (
            values if by_environment else {}
        )
        done = subprocess.run(
            line, cwd=folder, env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert not (folder / "pwned").exists(), "a value was carried out as a command"
        return told.read_bytes().decode().split("\0")

    return ask


@pytest.mark.varied(6)
@pytest.mark.parametrize("by_environment", [False, True])
@pytest.mark.parametrize("value", NASTY)
def test_values_arrive_as_they_are(asked, value, by_environment):
    graded = asked(
        "grade",
        by_environment,
        SUBMISSION=value,
        RESULTS=value,
        REPORT=value,
        K=value,
        PART=value,
        SEED=value,
    )
    assert graded[:2] == ["-m", "grader"] and graded[-2:] == ["--", value]
    assert {f"--{name}={value}" for name in ("results", "report", "only", "part", "seed")} <= set(
        graded
    )
    assert asked("report", by_environment, IMPL=value)[-2:] == ["--", value]
    assert f"--submission={value}" in asked("test", by_environment, IMPL=value)
    more = {"CLUSTER": value, "MICRO_BATCHES": value}
    drawn = asked(
        "timeline", by_environment, PART=value, IMPL=value, INTO=value, RANKS=value, **more
    )
    assert drawn[-2:] == ["--", value]
    names = ("submission", "into", "ranks", "cluster", "micro-batches")
    assert {f"--{name}={value}" for name in names} <= set(drawn)
    assert f"--module={value}" in asked("bandwidth", by_environment, IMPL=value)
    more = {"ROSTER": value, "DUE": value, "ENGINE": value, "SETTINGS": value, "AT_A_TIME": value}
    course = asked("course", by_environment, SUBMISSIONS=value, INTO=value, SEED=value, **more)
    assert course[:2] == ["-m", "grader.course"] and course[-2:] == ["--", value]
    names = ("into", "roster", "due", "engine", "settings", "at-a-time", "seed")
    assert {f"--{name}={value}" for name in names} <= set(course)


@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    value=st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), min_size=1)
)
def test_any_path_arrives_as_it_is(asked, value):
    assert asked("grade", by_environment=True, SUBMISSION=value)[-1] == value


def test_flags_of_a_course_become_options(asked):
    course = asked("course", SUBMISSIONS="a", INTO="b", REGRADE="1", UNCONFINED="1")
    assert course[-4:] == ["--regrade", "--unconfined", "--", "a"]
    course = asked("course", SUBMISSIONS="a", INTO="b", REGRADE="0", UNCONFINED="no")
    assert not {"--regrade", "--unconfined"} & set(course)


def test_only_the_tests_cover_the_whole_assignment(tmp_path):
    player = tmp_path / "player"
    player.write_text(
        f"#!{sys.executable}\nimport os, sys\nprint(sys.argv[2], os.environ['LOCKSTEP_COURSE'])\n"
    )
    player.chmod(0o755)
    line = ["make", "-s", "-f", str(ROOT / "Makefile"), "handout", "test", "K=1.1", f"PY={player}"]
    environment = os.environ | {"LOCKSTEP_COURSE": "own.toml"}
    done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == [
        "grader.packaging.stubs own.toml",
        "grader.packaging.pack own.toml",
        "grader.check /dev/null",
    ]


def test_the_help_names_every_option_of_a_course():
    said = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True).stdout
    recipe = (ROOT / "Makefile").read_text().partition("\ncourse:")[2].partition("\n\n")[0]
    for option in re.findall(r"\$\(if (?:\$\(call is_on,)?\$\((\w+)\)", recipe):
        assert f"{option}=" in said, option


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_an_interrupted_sample_ends_its_rehearsal(tmp_path):
    """A shell starts jobs in the background with SIGINT ignored."""
    player = tmp_path / "player"
    player.write_text(
        f"#!{sys.executable}\nimport os, pathlib, sys, time\n"
        "name = sys.argv[2].rpartition('.')[2]\n"
        f"pathlib.Path({str(tmp_path)!r}, name).write_text(str(os.getpid()))\n"
        "if name in ('rehearse', 'mutation'): time.sleep(300)\n"
    )
    player.chmod(0o755)
    line = ["make", "-s", "-f", str(ROOT / "Makefile"), "sample", f"PY={player}"]
    names = [tmp_path / name for name in ("rehearse", "mutation")]
    make = subprocess.Popen(line, cwd=tmp_path, start_new_session=True)
    pids: list[int] = []
    try:
        deadline = time.monotonic() + 60
        while not all(name.exists() and name.read_text() for name in names):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        pids = [int(name.read_text()) for name in names]
        os.killpg(make.pid, signal.SIGINT)  # as a terminal does after Ctrl-C
        assert make.wait(timeout=60) != 0
        assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    finally:
        for pid in [make.pid, *pids]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        make.wait()


def test_without_values_there_are_the_usual_ones(asked):
    assert asked("test") == ["-m", "grader.check", "-n", "auto", "--dist", "worksteal"]
    # To run some checks, make does not import the grader's own tests.
    assert asked("test", K="ring")[-3:] == ["tests", "grader/hidden", "--only=ring"]
    assert asked("test", IMPL="handout")[-2:] == ["tests", "--submission=handout"]
    assert asked("timeline")[-2:] == ["--submission=handout", "--"]
    assert asked("report") == ["-m", "grader", "--report=report.html", "--", "handout"]
