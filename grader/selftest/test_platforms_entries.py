"""What runs in the containers of other platforms, in folders laid out as the platform does it."""

import json
import os
import subprocess
import sys

import pytest

from grader.assignment import FILES, PARTS
from grader.check.record import FAILED, PASSED, UNIMPLEMENTED
from grader.platforms import __main__ as entry
from grader.platforms.packing.__main__ import write
from grader.platforms.packing.contents import everything
from grader.selftest.grading import ROOT
from grader.selftest.platform_readers import read_autolab, read_commands, read_prairielearn
from grader.selftest.test_platforms_formats import document


@pytest.fixture
def run(monkeypatch, capfd):
    """Run an entry in this process. The grader is replaced by one that leaves these results."""

    def call(*arguments: str, leaves: dict | None, code: int = 0) -> tuple[int, str]:
        def grader(self, submission, results, complaint):
            print("::error::from a submission", flush=True)
            complaint.write(b"cannot grade: a reason\nand expected values\n" if code else b"")
            if leaves is not None:
                results.write_text(json.dumps(leaves))
            return code

        monkeypatch.setattr(entry.Grading, "_run", grader)
        monkeypatch.setattr(sys, "argv", ["entry", *map(str, arguments)])
        return entry.main(), capfd.readouterr().out

    return call


def test_autolab_gets_the_scores_last(run, tmp_path):
    code, printed = run("autolab", tmp_path, leaves=document())
    assert code == 0 and read_autolab(printed)[1]["scores"]["Collectives"] > 0


def test_a_failure_of_the_grader_keeps_what_it_has_checked(run, tmp_path):
    code, printed = run("autolab", tmp_path, leaves=document(), code=2)
    assert code == 0 and entry.STOPPED in printed and "expected values" not in printed
    read_autolab(printed)


@pytest.mark.parametrize("platform", ["autolab", "prairielearn", "github", "harbor", "plain"])
def test_a_grader_without_results_hands_over_nothing(platform, run, tmp_path):
    """If a failed grader handed over results, every student would get a 0."""
    (tmp_path / "student").mkdir()
    (tmp_path / "student" / FILES[0]).touch()
    into = [tmp_path / "into"] * (platform in ("harbor", "plain"))
    names = "reward.txt" if platform == "harbor" else "results.json junit.xml report.html"
    (tmp_path / "into").mkdir()
    for name in names.split():  # files of an earlier submission
        (tmp_path / "into" / name).write_text("1.0" if into else "")
    code, printed = run(platform, tmp_path, *into, leaves=None, code=2)
    assert code == 2 and "scores" not in printed
    assert not into or not list((tmp_path / "into").iterdir())
    assert not (tmp_path / "results" / "results.json").exists()


def test_an_interruption_is_a_sentence(monkeypatch, tmp_path, capsys):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(entry.Grading, "_run", interrupted)
    monkeypatch.setattr(sys, "argv", ["entry", "plain", str(tmp_path), str(tmp_path / "into")])
    assert entry.main() == 2 and capsys.readouterr().err == "cannot grade: interrupted\n"


def test_prairielearn_gets_results_that_ranks_cannot_read(run, tmp_path):
    (tmp_path / "student").mkdir()
    (tmp_path / "student" / "collectives.py").touch()
    assert run("prairielearn", tmp_path, leaves=document())[0] == 0
    target = tmp_path / "results" / "results.json"
    assert read_prairielearn(target.read_text())["gradable"]
    assert target.parent.stat().st_mode & 0o777 == 0o700


def test_prairielearn_does_not_grade_an_empty_submission(run, tmp_path):
    (tmp_path / "student").mkdir()
    assert run("prairielearn", tmp_path, leaves=None)[0] == 0
    text = (tmp_path / "results" / "results.json").read_text()
    assert read_prairielearn(text)["gradable"] is False


def test_github_gets_no_command_of_a_submission(run, tmp_path, monkeypatch):
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    code, printed = run("github", tmp_path, leaves=document(states=(FAILED,)))
    assert code == 1 and "::error::from a submission" in printed
    assert [text for _, _, text in read_commands(printed) if "submission" in text] == []
    assert len(read_commands(printed)) == 11
    assert summary.read_text().startswith("before\n## Lockstep: 0 of")


@pytest.mark.parametrize("state, code", [(PASSED, 0), (UNIMPLEMENTED, 0), (FAILED, 1)])
def test_github_fails_for_failed_checks_alone(state, code, run, tmp_path, monkeypatch):
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    assert run("github", tmp_path, leaves=document(states=(state,)))[0] == code


def test_harbor_gets_a_reward_for_a_submission_that_is_not_there(run, tmp_path):
    """An older reward, which an agent may have written, is replaced."""
    (tmp_path / "reward.txt").write_text("1.0")
    missing = tmp_path / "none"
    assert run("harbor", missing, tmp_path, leaves=document(states=(FAILED,)))[0] == 0
    assert (tmp_path / "reward.txt").read_text() == "0.0\n"


def test_a_grader_that_hangs_is_ended(monkeypatch, tmp_path):
    """What the grader has written by then counts."""
    fake = tmp_path / "python"
    fake.write_text(
        '#!/bin/sh\nwhile [ "$1" != --results ]; do shift; done\n'
        f'cp {tmp_path}/document "$2"\nexec sleep 100\n'
    )
    fake.chmod(0o755)
    (tmp_path / "document").write_text(json.dumps(document()))
    monkeypatch.setattr(sys, "executable", str(fake))
    monkeypatch.setattr(entry, "START_AND_END_SECONDS", 0.5)
    monkeypatch.setenv("LOCKSTEP_SECONDS", "0.5")
    outcome = entry.Grading().run(tmp_path)
    assert outcome.code and outcome.document["output"].startswith(entry.STOPPED)


# ——— the packed scripts, on real gradings


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist") / "platforms"
    folder.parent.chmod(0o755)
    write(everything("you/image"), folder)
    return folder


def play(*command: object, cwd=None, **environment: object) -> subprocess.CompletedProcess:
    # A make that another make runs prints a line after the scores. So make's variables are removed.
    foreign = ("LOCKSTEP_", "PYTEST_", "MAKE", "MFLAGS")
    own = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
    own |= {"LOCKSTEP_PYTHON": sys.executable, "PYTHON": sys.executable}
    own |= {name: str(value) for name, value in environment.items()}
    line = list(map(str, command))
    return subprocess.run(line, cwd=cwd, env=own, capture_output=True, text=True, timeout=900)


CRASHING = """
import os, sys

sys.stdout.write('{"scores": {"Collectives": 999}}\\n::error::forged\\n')


def average(tensor):
    if dist.get_rank() == 0:
        os._exit(3)
    dist.all_reduce(tensor)
    return tensor
"""


@pytest.mark.long
@pytest.mark.parametrize("part", PARTS)
def test_harbor_rewards_the_answer_and_not_the_stub(part, packed, tmp_path):
    task = packed / "harbor" / part
    app, logs = tmp_path / "app", tmp_path / "logs"
    play("cp", "-r", task / "environment" / "lockstep", app)
    places = {"LOCKSTEP_APP": app, "LOCKSTEP_LOGS": logs}
    for solved, reward in (False, 0.0), (True, 1.0):
        if solved:
            assert play(task / "solution" / "solve.sh", **places).returncode == 0
        done = play(task / "tests" / "test.sh", **places)
        assert (done.returncode, (logs / "reward.txt").read_text()) == (0, f"{reward}\n"), done


@pytest.mark.long
def test_harbor_gives_partial_credit_when_one_rank_crashes(packed, tmp_path):
    task = packed / "harbor" / "collectives"
    app, logs = tmp_path / "app", tmp_path / "logs"
    play("cp", "-r", task / "environment" / "lockstep", app)
    answer = (ROOT / "solutions/collectives.py").read_text()
    (app / "handout/collectives.py").write_text(answer + CRASHING)
    done = play(task / "tests" / "test.sh", LOCKSTEP_APP=app, LOCKSTEP_LOGS=logs)
    # Problem 1.4 has one of 20 points.
    assert (done.returncode, (logs / "reward.txt").read_text()) == (0, "0.95\n"), done


@pytest.mark.long
def test_autolab_and_prairielearn_grade_a_submission_that_crashes(packed, tmp_path):
    job, grade = tmp_path / "job", tmp_path / "grade"
    (grade / "student").mkdir(parents=True)
    job.mkdir()
    names = [f"{part}.py" for part, about in PARTS.items() if not about.is_extra]
    for name in names:
        text = (ROOT / "solutions" / name).read_text()
        (grade / "student" / name).write_text(text + CRASHING * (name == "collectives.py"))
    play("cp", packed / "autolab" / "autograde.tar", job)
    play("cp", packed / "autolab" / "autograde-Makefile", job / "Makefile")
    pack = [sys.executable, "-m", "zipfile", "-c", job / "submission.zip", *names]
    assert play(*pack, cwd=grade / "student").returncode == 0
    done = play("make", cwd=job)
    scores = read_autolab(done.stdout + done.stderr)[1]
    extra = len(PARTS) - len(names)
    assert done.returncode == 0
    assert scores["scoreboard"] == [19.0, 15.0, 20.0, 20.0, 25.0, *[0.0] * extra, 99.0]
    play("cp", "-r", packed / "prairielearn/questions/lockstep/tests", grade / "tests")
    done = play(grade / "tests" / "run.sh", LOCKSTEP_GRADE=grade)
    found = read_prairielearn((grade / "results" / "results.json").read_text())
    assert (done.returncode, found["score"]) == (0, 0.99), done


@pytest.mark.long
def test_the_plain_container_writes_three_files(packed, tmp_path):
    places = {"LOCKSTEP_SUBMISSION": ROOT / "handout", "LOCKSTEP_RESULTS": tmp_path / "r"}
    done = play(packed / "plain" / "grade.sh", **places)
    assert done.returncode == 0, done
    written = sorted(path.name for path in (tmp_path / "r").iterdir())
    assert written == ["junit.xml", "report.html", "results.json"]
