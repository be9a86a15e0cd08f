"""Worlds come up in every way there is, and go with whoever asked for them."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from grader.face import call
from grader.intake.stage import stage
from grader.selftest.grading import ROOT
from grader.worlds import platform
from grader.worlds.platform import family
from grader.worlds.server_process import Server, WorldsUnavailable
from grader.worlds.world import Limits, World

X = np.ones(4, np.float32)
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


@pytest.fixture
def solutions(grounds: Path) -> Path:
    return stage(ROOT / "solutions", grounds / "stage").folder


def values(server: Server, folder: Path, size: int) -> list:
    report = World(server, size, [call("collectives.all_reduce", X).spread(size)], folder, "cpu", Limits()).run()
    assert report.ending == "finished"
    return [rank.outcomes[0].value.tolist() for rank in report.ranks]


def test_spawned_ranks_do_what_forked_ones_do(solutions, monkeypatch):
    """The way to start on systems where fork is not safe."""
    monkeypatch.setenv("LOCKSTEP_START", "spawn")
    server = Server.start()
    try:
        facts = server.facts()
        assert facts["way"] == "spawn" and facts["torch"] and facts["gpus"] >= 0
        assert values(server, solutions, 2) == [[2.0] * 4] * 2
    finally:
        server.stop()


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_worlds_of_every_size(server, solutions, size):
    assert values(server, solutions, size) == [[float(size)] * 4] * size


def test_a_server_that_does_not_start_is_said(monkeypatch):
    monkeypatch.setenv("LOCKSTEP_START", "levitate")
    monkeypatch.setattr("grader.worlds.server_process.ENGINE", "/nowhere")
    server = Server.start()
    try:
        with pytest.raises(WorldsUnavailable, match="the fork server does not run: .*No module named 'grader'"):
            server.facts()
    finally:
        server.stop()


@LINUX
def test_the_server_and_its_folder_go_with_its_owner(tmp_path):
    program = "import time; from grader.worlds.server_process import Server; s = Server.start(); s.facts()"
    program += "; print(s.process.pid, s.folder, flush=True); time.sleep(60)"
    owner = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    pid, folder = owner.stdout.readline().split()
    owner.kill()
    owner.wait()
    eventually(lambda: not Path(f"/proc/{pid}").exists())
    eventually(lambda: not Path(folder).exists())


@LINUX
def test_ranks_go_with_a_judge_that_is_killed(grounds, tmp_path, server):
    submission = tmp_path / "submission"
    submission.mkdir()
    (submission / "collectives.py").write_text(
        "import os, time\ndef f(x):\n    print(os.getpid(), flush=True)\n    time.sleep(60)\n"
    )
    staged = stage(submission, grounds / "stage")
    program = f"""
import numpy as np
from pathlib import Path
from grader.face import call
from grader.worlds.server_process import Server
from grader.worlds.world import Limits, World
world = World(Server({server.address!r}), 2, [call("collectives.f", 1).spread(2)], Path({str(staged.folder)!r}), "cpu", Limits())
seen = world._on_output
def shown(rank, pipe):
    seen(rank, pipe)
    if all(r.output for r in world.report.ranks):
        print(*(int(r.output) for r in world.report.ranks), flush=True)
world._on_output = shown
world.run()
"""
    judge = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT, pass_fds=[server.door]
    )
    pids = [int(pid) for pid in judge.stdout.readline().split()]
    assert len(pids) == 2 and all(Path(f"/proc/{pid}").exists() for pid in pids)
    judge.send_signal(signal.SIGKILL)
    judge.wait()
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def eventually(condition) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("not within twelve seconds")


@LINUX
@pytest.mark.parametrize("listed", [True, False])
def test_children_are_found(monkeypatch, listed):
    """Those of other threads, too; by the kernel's list, and where it keeps none."""
    if not listed:
        monkeypatch.setattr(platform.os.path, "exists", lambda _: False)
    started = []
    command = [sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '60'])"]
    thread = threading.Thread(target=lambda: (started.append(subprocess.Popen(command)), go.wait()))
    go = threading.Event()
    thread.start()
    try:
        for _ in range(200):
            if started and family(started[0].pid):
                break
            time.sleep(0.05)
        (grandchild,) = family(started[0].pid)
        found = family(os.getpid())
        assert found[started[0].pid] == found[grandchild] == 1
    finally:
        for pid in family(started[0].pid):
            os.kill(pid, signal.SIGKILL)
        started[0].kill()
        started[0].wait()
        go.set()
        thread.join()
    assert started[0].pid not in family(os.getpid())
