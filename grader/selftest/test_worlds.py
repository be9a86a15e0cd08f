"""Worlds start in every way that there is, and end with the process that has asked for them."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from grader.check.api import call
from grader.intake.staging import stage_submission
from grader.selftest.grading import ROOT, eventually
from grader.supervisor import rank_folders, world_supervisor
from grader.supervisor.supervisors import Supervisors
from grader.wire import os_support, removal
from grader.wire.os_support import family
from grader.wire.world_request import WorldRequest
from grader.world import world
from grader.world.fork_server_client import Server, WorldsUnavailable
from grader.world.limits import Limits
from grader.world.processes import Processes
from grader.world.world import World

X = np.ones(4, np.float32)
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


@pytest.fixture
def solutions(grounds: Path) -> Path:
    return stage_submission(ROOT / "solutions", grounds / "stage").folder


def values(server: Server, folder: Path, size: int) -> list:
    report = World(
        server, size, [call("collectives.all_reduce", X).spread(size)], folder, Limits()
    ).run()
    assert report.ending == "finished"
    return [rank.outcomes[0].value.tolist() for rank in report.ranks]


@pytest.mark.long
def test_spawned_ranks_do_what_forked_ones_do(solutions, monkeypatch):
    """Ranks are spawned on systems on which fork is not safe."""
    monkeypatch.setenv("LOCKSTEP_START", "spawn")
    server = Server.start()
    try:
        facts = server.facts()
        assert facts["way"] == "spawn" and facts["torch"]
        assert values(server, solutions, 2) == [[2.0] * 4] * 2
    finally:
        server.stop()


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_worlds_of_every_size(server, solutions, size):
    assert values(server, solutions, size) == [[float(size)] * 4] * size


def test_a_server_that_does_not_start_is_said(monkeypatch):
    monkeypatch.setenv("LOCKSTEP_START", "levitate")
    monkeypatch.setattr("grader.world.fork_server_client.ENGINE", Path("/nowhere"))
    server = Server.start()
    try:
        with pytest.raises(
            WorldsUnavailable,
            match="the fork server does not run or answer: .*No module named 'grader'",
        ):
            server.facts()
    finally:
        server.stop()
    assert not server.folder.exists()


@pytest.mark.long
@LINUX
def test_the_server_and_its_folder_go_with_its_owner(tmp_path):
    program = (
        "import time; from grader.world.fork_server_client import Server; s = Server.start();"
        " s.facts()"
    )
    program += "; print(s.process.pid, s.folder, flush=True); time.sleep(60)"
    owner = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
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
    staged = stage_submission(submission, grounds / "stage")
    program = f"""
import numpy as np
from pathlib import Path
from grader.check.api import call
from grader.world.fork_server_client import Server
from grader.world.limits import Limits
from grader.world.world import World
world = World(Server({server.address!r}), 2, [call("collectives.f", 1).spread(2)], Path({str(staged.folder)!r}), Limits())
seen = world._on_output
def shown(rank, pipe):
    seen(rank, pipe)
    if all(r.output for r in world.report.ranks):
        print(*(int(r.output) for r in world.report.ranks), flush=True)
world._on_output = shown
world.run()
"""
    judge = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        pass_fds=[server.door],
    )
    pids = [int(pid) for pid in judge.stdout.readline().split()]
    assert len(pids) == 2 and all(Path(f"/proc/{pid}").exists() for pid in pids)
    judge.send_signal(signal.SIGKILL)
    judge.wait()
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


@LINUX
@pytest.mark.parametrize("listed", [True, False])
def test_children_are_found(monkeypatch, listed):
    """Children of other threads are found, too: by the kernel's list, or without such a list."""
    if not listed:
        monkeypatch.setattr(os_support.os.path, "exists", lambda _: False)
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


# ——— who may ask, and for what


ASKS = (
    "import sys; from grader.world.fork_server_client import Server;"
    " print(Server(sys.argv[1]).facts()['way'])"
)


def test_who_has_not_inherited_the_servers_socket_cannot_ask(server):
    """Another file with the same number does not help. The socket has no name to connect to."""
    with open(os.devnull) as other:
        for handed in ([server.door], [], [other.fileno()]):
            address = (
                server.address
                if handed != [other.fileno()]
                else f"{handed[0]}:{server.address.split(':')[1]}"
            )
            line = [sys.executable, "-c", ASKS, address]
            done = subprocess.run(
                line, cwd=ROOT, capture_output=True, text=True, pass_fds=handed, timeout=60
            )
            if handed == [server.door]:
                assert done.stdout.strip() in ("fork", "spawn"), done.stderr
            else:
                assert (
                    done.stdout == ""
                    and "has not inherited the socket of the fork server" in done.stderr
                )


def test_a_folder_of_ours_is_no_submission(tmp_path, server):
    (tmp_path / "stage").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(ROOT / "grader")
    inside = tmp_path / "link" / "selftest"
    for path in (
        ROOT,
        ROOT / "grader",
        ROOT / "grader" / "hidden",
        Path("/"),
        inside,
        tmp_path / "link",
    ):
        assert "submission" in rank_folders.refusal(str(path), ROOT), path
    for path in ("stage", f"{tmp_path}/x/../stage", f"{tmp_path}/file", f"{tmp_path}/nowhere"):
        assert "submission" in rank_folders.refusal(path, ROOT), path
    assert rank_folders.refusal(str(tmp_path / "stage"), ROOT) == ""
    report = World(
        server, 1, [call("collectives.f").spread(1)], ROOT / "grader" / "hidden", Limits()
    ).run()
    assert report.ending == "lost" and not report.ranks[0].outcomes


def test_a_world_may_be_lost_before_its_ranks_have_heard_anything(server, solutions, monkeypatch):
    """A killed supervisor or rank resets its connections. That is no fault of the judge."""
    start = Processes.start

    def dead(*asked) -> Processes:
        made = start(*asked)
        for end in (made.supervisor, made.wires[0]):
            end.close()
        made.supervisor, its = socket.socketpair()
        its.close()
        made.wires[0], its = socket.socketpair()
        with contextlib.suppress(BlockingIOError):
            while True:  # fill the connection, so that a sender has to wait
                made.wires[0].send(bytes(1 << 16), socket.MSG_DONTWAIT)
        threading.Timer(0.2, its.close).start()
        return made

    monkeypatch.setattr(Processes, "start", dead)
    report = World(
        server, 1, [call("collectives.all_reduce", X).spread(1)], solutions, Limits()
    ).run()
    assert report.ending == "lost" and not report.grader_fault


def test_the_folder_of_a_world_is_the_servers_choice(tmp_path, server, solutions):
    request = WorldRequest("gloo", 1, str(solutions), "cpu", 1 << 30, folder=str(tmp_path))
    wires = [socket.socketpair() for _ in range(3)]
    with server.request(request.message(), [its.fileno() for _, its in wires]) as judge:
        assert "pids" in json.loads(judge.makefile().readline())
    for pair in wires:
        for end in pair:
            end.close()
    assert list(tmp_path.glob("r*")) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"{",
        b'{"size": 1}',
        b'{"size": -1, "submission_dir": "/"}',
        b'{"size": "1", "submission_dir": 7}',
        b"\xff" * 9000,
    ],
)
def test_what_makes_no_sense_costs_the_server_nothing(server, solutions, data):
    """A request is one datagram. The server does not wait for the rest of an unfinished request.

    It answers with an end of file.
    """
    mine, its = socket.socketpair()
    with its:
        server._send(data, [its.fileno()])
    mine.settimeout(30)
    with mine:
        assert mine.recv(1) == b""
    assert values(server, solutions, 1) == [[1.0] * 4]


@LINUX
def test_server_that_does_not_answer_is_given_up(solutions, monkeypatch):
    monkeypatch.setattr(world, "SERVER_SECONDS", 0.5)
    server = Server.start()
    try:
        assert server.facts() and server.process
        os.kill(server.process.pid, signal.SIGSTOP)
        with pytest.raises(WorldsUnavailable, match="does not answer"):
            values(server, solutions, 1)
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
        server.stop()


@LINUX
def test_a_world_that_cannot_be_started_is_the_graders_fault(solutions):
    """The server's folder is gone, as if the disk had no room for another one."""
    server = Server.start()
    try:
        assert server.facts() and server.folder
        removal.remove(server.folder)
        calls = [call("collectives.all_reduce", X).spread(1)]
        report = World(server, 1, calls, solutions, Limits()).run()
        assert report.ending == "lost"
        assert report.grader_fault == "no ranks could be started: No such file or directory"
    finally:
        server.stop()


def test_a_standby_that_cannot_be_forked_does_not_end_the_server(capfd):
    def fork(work):
        raise BlockingIOError("no process left")

    server = SimpleNamespace(places=["a place"], standby=None, has_failed=False, _fork=fork)
    Supervisors.prepare(server)
    assert server.has_failed and server.standby is None
    assert "no process left" in capfd.readouterr().err


@LINUX
@pytest.mark.parametrize("hard, bound", [(1 << 20, 1 << 20), (1 << 30, 1 << 24)])
def test_a_hard_limit_that_is_lower_already_stays(hard, bound):
    program = (
        "import resource, sys; from grader.rank import confinement\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({hard}, {hard}))\n"
        f"confinement._bound(resource.RLIMIT_FSIZE, {1 << 24})\n"
        "print(resource.getrlimit(resource.RLIMIT_FSIZE))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == f"({bound}, {bound})\n", done.stderr


# ——— a supervisor that meets an error that was not foreseen


def too_deep(*_):
    raise RecursionError("too deep")


def started(descriptors, home) -> int:
    """Fork a rank that leaves a process in another session. Return the rank's pid.

    The rank writes both pids into the file ``who``, and ends soon.
    """
    pid = os.fork()
    if pid == 0:
        left = os.fork()
        if left == 0:
            os.setsid()
            time.sleep(30)
        Path(home.folder, "who").write_text(f"{os.getpid()} {left}")
        os.rename(Path(home.folder, "who"), Path(home.submission_dir, "who"))
        time.sleep(0.3)
        os._exit(0)
    return pid


def kept(spoil, says: str, stage: Path, folder: Path) -> tuple[list[dict], int]:
    """Return what a supervisor says to a judge, and the supervisor's exit code.

    The judge ends the world when the message ``says`` has come, unless it is a fault.
    """
    request = WorldRequest("gloo", 1, str(stage), "cpu", 1 << 30, folder=str(folder))
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            ours.close()
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # otherwise pytest's own limit answers
            spoil()
            world_supervisor.run_world(theirs, [list(os.pipe())], started, request, "none")
            code = 0
        finally:
            os._exit(code)
    theirs.close()
    said = []
    for line in ours.makefile():
        said.append(json.loads(line))
        if says in said[-1] and says != "fault":
            ours.sendall(b"end")
    _, status = os.waitpid(pid, 0)
    return said, os.waitstatus_to_exitcode(status)


@LINUX
@pytest.mark.parametrize(
    "owner, name, says, told",
    [
        (
            world_supervisor,
            "MemoryAndFileLimits",
            "fault",
            "the supervisor of this world failed: RecursionError: too deep",
        ),
        (
            world_supervisor.rank_folders,
            "prepare",
            "fault",
            "the supervisor of this world failed: RecursionError: too deep",
        ),
        (
            world_supervisor.os,
            "waitstatus_to_exitcode",
            "fault",
            "the supervisor of this world failed: RecursionError: too deep",
        ),
        (
            world_supervisor.MemoryAndFileLimits,
            "exceeded",
            "limit",
            "made processes or files that the grader cannot measure (RecursionError)",
        ),
        (world_supervisor.cleanup, "remove_shared_memory", "rank", 0),
        (world_supervisor.removal, "remove", "rank", 0),
    ],
)
def test_a_supervisor_that_fails_ends_its_world(tmp_path, owner, name, says, told):
    """A supervisor that cannot continue reports a fault. In any case it leaves no process."""
    (folder := tmp_path / "folder").mkdir()
    said, code = kept(lambda: setattr(owner, name, too_deep), says, tmp_path, folder)
    assert code == 0 and said[-1] == {"gone": True}
    assert [line[says] for line in said if says in line][:1] == [told]
    who = (tmp_path / "who").read_text().split() if (tmp_path / "who").exists() else []
    # Some ranks are ended before they can write their pids.
    assert len(who) <= (2 if "pids" in said[0] else 0)
    assert not [pid for pid in who if Path(f"/proc/{pid}").exists()]
    assert folder.exists() == (name == "remove")


@pytest.mark.long
@LINUX
def test_a_supervisor_that_is_stuck_is_ended(tmp_path):
    """The system ends the supervisor. The server then ends the world.

    See ``test_a_world_ends_with_whoever_looks_after_it``.
    """
    (folder := tmp_path / "folder").mkdir()

    def stick():
        world_supervisor.STUCK_SECONDS = 1
        world_supervisor.MemoryAndFileLimits.exceeded = lambda *_: time.sleep(60)

    said, code = kept(stick, "never", tmp_path, folder)
    assert code == -signal.SIGALRM and "gone" not in said[-1]
    for pid in (tmp_path / "who").read_text().split():
        if Path(f"/proc/{pid}").exists():
            os.kill(int(pid), signal.SIGKILL)
