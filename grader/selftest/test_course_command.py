"""`make course` as an instructor runs it: with real graders, real workers, and real kills."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
COURSE = [sys.executable, "-m", "grader.course"]

pytestmark = pytest.mark.long

SBATCH = """#!/bin/sh
# Stands for Slurm's sbatch: runs the script here.
# As Slurm's own, it keeps a copy of the script: the script is removed when sbatch has ended.
for last; do :; done
copy=$(mktemp "$JOBS.XXXXXX") && cp "$last" "$copy"
sh -c 'echo $$ >> "$JOBS"; exec bash "$0"' "$copy" > "$copy.out" 2>&1 &
echo "Submitted batch job $!"
"""
SQUEUE = """#!/bin/sh
for pid in $(cat "$JOBS"); do kill -0 "$pid" 2> /dev/null && echo "$pid"; done
exit 0
"""


@pytest.fixture
def submissions(tmp_path):
    """Return a folder with four submissions that take a second each: one part, or nothing."""
    folder = tmp_path / "in"
    for name in ("ann", "bob", "cem", "dan"):
        (folder / name).mkdir(parents=True)
    solution = (ROOT / "solutions" / "benchmarking.py").read_text()
    (folder / "ann" / "benchmarking.py").write_text(solution)
    (folder / "bob" / "benchmarking.py").write_text(solution + "\nBUG = 1\n")
    (folder / "cem" / "benchmarking.py").write_text("import os; os.abort()\n")
    return folder


def command(submissions, into, *options):
    return [*COURSE, str(submissions), "--into", str(into), "--unconfined", *map(str, options)]


def grade(submissions, into, *options, **more):
    done = subprocess.run(
        command(submissions, into, *options), cwd=ROOT, text=True, capture_output=True, **more
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def results(into):
    return {path.parent.name: path for path in into.glob("submissions/*/result.json")}


def scores(path):
    tests = json.loads(path.read_text())["tests"]
    return {test["extra_data"]["check"]: test["score"] for test in tests}


def totals(into):
    return {p.parent.name: scores(p) for p in into.glob("submissions/*/results.json")}


def gradings(course):
    """Return the processes below a course, and the temporary folders of its gradings."""
    with contextlib.suppress(psutil.NoSuchProcess):
        below = psutil.Process(course.pid).children(recursive=True)
        words = [process.cmdline() for process in below]
        folders = [Path(one[4]) for one in words if "grader.course.watched" in one]
        return below, [folder for folder in folders if folder.exists()]
    return [], []


def wait_for(condition, seconds=120.0):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.05)


def test_scores_are_those_of_make_grade(submissions, tmp_path):
    grade(submissions, tmp_path / "out", "--seed", 3)
    for name, path in results(tmp_path / "out").items():
        result = json.loads(path.read_text())["result"]
        alone = tmp_path / f"{name}.json"
        subprocess.run(
            [sys.executable, "-m", "grader", "--results", alone, "--seed", result["seed"]]
            + ["--", submissions / name],
            cwd=ROOT,
            check=True,
            capture_output=True,
        )
        assert totals(tmp_path / "out")[name] == scores(alone)
    assert sum(totals(tmp_path / "out")["ann"].values()) == 15
    assert sum(totals(tmp_path / "out")["dan"].values()) == 0


def test_a_course_that_was_killed_goes_on(submissions, tmp_path):
    into = tmp_path / "out"
    course = subprocess.Popen(
        command(submissions, into, "--at-a-time", 1), cwd=ROOT, stdout=subprocess.DEVNULL
    )
    wait_for(lambda: results(into) and gradings(course)[1])
    below, folders = gradings(course)
    course.send_signal(signal.SIGKILL)
    course.wait()
    done = {name: path.stat().st_mtime_ns for name, path in results(into).items()}
    assert 0 < len(done) < 4
    assert not psutil.wait_procs(below, 30)[1]
    wait_for(lambda: not any(folder.exists() for folder in folders), 10)
    said = grade(submissions, into)
    assert f"4 submissions, {len(done)} graded or refused already." in said
    times = {name: path.stat().st_mtime_ns for name, path in results(into).items()}
    assert len(times) == 4 and done.items() <= times.items()
    leftover = [path for path in into.rglob(".*") if path.name != ".lock"]
    assert not leftover


def test_ctrl_c_ends_the_graders_and_keeps_the_results(submissions, tmp_path):
    course = subprocess.Popen(
        command(submissions, tmp_path / "out"), cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    of_course = psutil.Process(course.pid)
    wait_for(lambda: len(of_course.children(recursive=True)) > 3 and results(tmp_path / "out"))
    children = of_course.children(recursive=True)
    course.send_signal(signal.SIGINT)
    _, said = course.communicate(timeout=20)
    assert course.returncode == 2 and said.startswith("cannot grade the course: interrupted.")
    assert len(said.splitlines()) == 1
    _, alive = psutil.wait_procs(children, 15)
    assert not alive and results(tmp_path / "out")


@contextlib.contextmanager
def scheduler(tmp_path, workers):
    """Start a scheduler and its workers as processes, and yield its address and the workers."""
    file = tmp_path / "scheduler.json"
    dask = [sys.executable, "-m", "distributed.cli.dask_"]
    quiet = {"cwd": ROOT, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = [
        subprocess.Popen(
            [*dask[:2], f"{dask[2]}scheduler", "--host", "127.0.0.1", "--port", "0"]
            + ["--dashboard-address", "127.0.0.1:0", "--scheduler-file", file],
            **quiet,
        )
    ]
    try:
        wait_for(file.exists)
        for _ in range(workers):
            started.append(
                subprocess.Popen(
                    [*dask[:2], f"{dask[2]}worker", "--scheduler-file", file, "--nthreads", "1"]
                    + ["--dashboard-address", "127.0.0.1:0", "--local-directory", tmp_path],
                    **quiet,
                )
            )
        yield json.loads(file.read_text())["address"], started[1:]
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait(30)


def test_workers_that_die_lose_no_result(submissions, tmp_path):
    into = tmp_path / "out"
    with scheduler(tmp_path, 2) as (address, [_, victim]):
        course = subprocess.Popen(
            command(submissions, into, "--engine", address),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        kills = 0
        while kills < 2 and course.poll() is None:
            # The nanny starts its worker again, so each time there is another one to kill.
            workers = [p for p in psutil.Process(victim.pid).children() if _grades(p)]
            for worker in workers[:1]:
                worker.kill()
                kills += 1
            time.sleep(0.05)
        said, _ = course.communicate(timeout=300)
    assert kills == 2 and course.returncode == 0, said
    assert len(results(into)) == 4 and said.count("[4/4]") == 1
    assert sum(totals(into)["ann"].values()) == 15


def _grades(worker):
    with contextlib.suppress(psutil.Error):
        return any("grader.course.watched" in child.cmdline() for child in worker.children())
    return False


@pytest.fixture
def slurm(tmp_path):
    """Return ``(options, environment, jobs)`` of a course that is graded on Slurm.

    The stand-in for Slurm runs each job on this machine, as soon as it is submitted, and appends
    its process id to the file ``jobs``.
    """
    programs = tmp_path / "bin"
    programs.mkdir()
    texts = {"sbatch": SBATCH, "scancel": "#!/bin/sh\nkill $1\n", "squeue": SQUEUE}
    for name, text in texts.items():
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    settings = (ROOT / "grader" / "course" / "slurm.yaml").read_text()
    (tmp_path / "s.yaml").write_text(settings.replace("jobs: 10", "jobs: 2\ninterface: lo"))
    jobs = tmp_path / "jobs"
    path = f"{programs}:{os.environ['PATH']}"
    options = ("--engine", "slurm", "--settings", tmp_path / "s.yaml")
    yield options, os.environ | {"PATH": path, "JOBS": str(jobs)}, jobs
    for pid in jobs.read_text().split() if jobs.exists() else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGTERM)


def test_slurm_jobs_grade_a_course(submissions, tmp_path, slurm):
    options, environment, jobs = slurm
    said = grade(submissions, tmp_path / "out", *options, env=environment)
    assert len(jobs.read_text().split()) == 2
    assert "[4/4]" in said and len(results(tmp_path / "out")) == 4


def test_slurm_jobs_that_fail_at_once_are_told(submissions, tmp_path, slurm):
    """dask alone would wait for ever for workers that never come."""
    options, environment, jobs = slurm
    with open(tmp_path / "s.yaml", "a") as settings:
        settings.write('job_script_prologue: ["exit 1"]\n')
    done = subprocess.run(
        command(submissions, tmp_path / "out", *options),
        **{"cwd": ROOT, "text": True, "capture_output": True, "env": environment, "timeout": 300},
    )
    assert done.returncode == 2, done.stdout + done.stderr
    assert "all 2 jobs of Slurm have ended, but some submissions are not graded" in done.stderr
    assert "Traceback" not in done.stderr and not results(tmp_path / "out")
