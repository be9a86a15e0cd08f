"""A course that waits for workers says so, and ends when none can come."""

import pytest

from grader.course import worker_watch
from grader.course.worker_watch import (
    FIRST_WORD_AFTER,
    LOOK_AT_WORKERS_EVERY,
    NoWorker,
    WorkerWatch,
)


class Now:
    seconds = 0.0

    def __call__(self):
        return self.seconds


@pytest.fixture
def now():
    return Now()


def looks(watch, now, seconds):
    for _ in range(round(seconds / LOOK_AT_WORKERS_EVERY)):
        now.seconds += LOOK_AT_WORKERS_EVERY
        watch.look()


def test_while_workers_are_there_nothing_is_said(now, capsys):
    looks(WorkerWatch(lambda: 1, lambda: ["7"], now), now, 3600)
    assert capsys.readouterr().out == ""


def test_a_scheduler_without_workers_is_told_once_in_ten_minutes(now, capsys):
    watch = WorkerWatch(lambda: 0, clock=now)
    looks(watch, now, FIRST_WORD_AFTER)
    assert capsys.readouterr().out == ""
    looks(watch, now, LOOK_AT_WORKERS_EVERY)
    assert capsys.readouterr().out.startswith("For 1 min, the scheduler has had no worker.")
    looks(watch, now, 1200)
    assert capsys.readouterr().out.count("\n") == 2


def test_jobs_that_wait_in_the_queue_are_waited_for(now, capsys, monkeypatch):
    monkeypatch.setattr(worker_watch, "queued", lambda jobs: {"7"})
    looks(WorkerWatch(lambda: 0, lambda: ["7", "8"], now), now, 900)
    assert "no job of Slurm has been connected (squeue --me" in capsys.readouterr().out


def test_jobs_that_have_all_ended_end_the_wait(now, monkeypatch):
    """The watch remembers the jobs' ids, because dask forgets a job when its worker has left."""
    ids, workers = ["7", "8"], [1]
    monkeypatch.setattr(worker_watch, "queued", lambda jobs: set())
    watch = WorkerWatch(lambda: len(workers), lambda: ids, now)
    looks(watch, now, 60)
    ids.clear(), workers.clear()
    looks(watch, now, LOOK_AT_WORKERS_EVERY)
    with pytest.raises(NoWorker, match="all 2 jobs of Slurm have ended"):
        looks(watch, now, LOOK_AT_WORKERS_EVERY)


def test_where_slurm_does_not_say_which_jobs_are_left_nothing_ends(now, monkeypatch):
    monkeypatch.setattr(worker_watch, "queued", lambda jobs: None)
    looks(WorkerWatch(lambda: 0, lambda: ["7"], now), now, 3600)


@pytest.mark.parametrize(
    ("script", "found"),
    [("echo 7; echo 9", {"7"}), ("true", set()), ("echo 7; exit 1", None), (None, None)],
    ids=["some", "none", "controller-away", "not-installed"],
)
def test_the_queue_is_read(tmp_path, monkeypatch, script, found):
    if script:
        (tmp_path / "squeue").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert worker_watch.queued(["7", "8"]) == found
