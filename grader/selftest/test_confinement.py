"""What ranks may not do, tier by tier, and what they are told when they meet a bound."""

import ctypes
import os
import sys
import tempfile
import textwrap
from pathlib import Path

import numpy
import pytest

from grader.face import CheckFailed, World, call
from grader.intake.stage import stage
from grader.selftest.conftest import PREAMBLE
from grader.selftest.grading import ROOT
from grader.worlds import confinement, world as worlds
from grader.worlds.confinement import TIERS
from grader.worlds.server_process import Server, WorldsUnavailable

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux confines ranks")
CONFINED = [name for name in TIERS if name != "none"]


def kernel_has_landlock() -> bool:
    """Asked without the grader's own code, which may be what is broken."""
    return sys.platform.startswith("linux") and ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1) > 0


def best_of_this_machine() -> str:
    """The tier that a kernel with Landlock should end in: as its user is, and what strangers may read."""
    own = dict(line.split(":\t") for line in Path("/proc/self/status").read_text().splitlines())
    powers = int(own["CapEff"], 16)
    users = max(int(line.split()[2]) for line in Path("/proc/self/uid_map").read_text().splitlines())
    chown, read, change_group, change_user = (powers >> number & 1 for number in (0, 2, 6, 7))
    if os.geteuid() or not (chown and change_group and change_user) or users < confinement.UIDS.stop:
        return "landlock"
    wanted = [Path(name).resolve() for name in (os.__file__, numpy.__file__, tempfile.gettempdir())]
    if all(folder.stat().st_mode & 0o001 for path in wanted for folder in path.parents):
        return "uid+landlock"
    return "uid+landlock+reader" if read else "landlock"


def told(world: World, function: str, size: int = 1) -> str:
    """What the student reads of a call, or ``fine``."""
    try:
        return repr(world(size, call(f"collectives.{function}"))[0].values()[0])
    except CheckFailed as failure:
        return str(failure)


@pytest.fixture(scope="module", params=CONFINED)
def confined(request) -> Server:
    """A server of each tier that this machine has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCKSTEP_TIER", request.param)
        server = Server.start()
    try:
        server.facts()
    except WorldsUnavailable as error:
        pytest.skip(f"not on this machine: {error}")
    yield server
    server.stop()


def inside(server: Server, grounds: Path, source: str) -> World:
    """The world of a submission of this source, started by this server."""
    (grounds / "submission").mkdir()
    (grounds / "submission" / "collectives.py").write_text(PREAMBLE + textwrap.dedent(source))
    folder = stage(grounds / "submission", grounds / "stage").folder
    return World(lambda n, calls: worlds.World(server, n, calls, folder, "cpu", worlds.Limits()).run(), None, {})


ATTEMPTS = """
def attempt(function, *arguments):
    try:
        return f"DONE {function(*arguments)}"
    except OSError as error:
        return type(error).__name__

def reads():
    return [attempt(os.listdir, path) for path in PATHS]

def writes():
    return [attempt(open, path, "w") for path in (PLACE + "/x", os.path.dirname(os.getcwd()) + "/x", "own")]

def signals():
    return attempt(os.kill, os.getppid(), 0)

def rewrites():
    return attempt(open, __file__, "a")

def imports():
    import colorsys, wsgiref, torch.utils.benchmark  # what was not imported before
    return "fine"

def opens_itself():
    return len(os.listdir("/proc/self/fd")) > 2

def judge():
    return [attempt(lambda path: open(path, "rb").read(9), f"/proc/{JUDGE}/{name}") for name in ("environ", "mem", "maps")]
"""


def test_a_tier_keeps_what_it_says(confined, grounds, tmp_path):
    secrets = [str(ROOT / name) for name in ("grader/hidden", "solutions", "grader/selftest")]
    names = f"PATHS = {secrets!r}\nPLACE = {str(tmp_path)!r}\nJUDGE = {os.getpid()}\n"
    world = inside(confined, grounds, names + ATTEMPTS)
    assert told(world, "reads") == repr(["PermissionError"] * 3)
    refused, beside, own = eval(told(world, "writes"))
    assert (refused, beside, own[:4]) == ("PermissionError", "PermissionError", "DONE")
    assert told(world, "rewrites") == "'PermissionError'"
    assert told(world, "imports") == "'fine'"
    assert told(world, "opens_itself") == "True"
    assert told(world, "judge") == repr(["PermissionError"] * 3)
    if not confined.facts()["gaps"] or "uid" in confined.facts()["tier"]:
        assert told(world, "signals") == "'PermissionError'"


@pytest.mark.skipif(not kernel_has_landlock(), reason="this kernel has no Landlock")
def test_what_a_machine_has_is_used(monkeypatch):
    """A protection that is broken would end in a weaker tier, and the tests of the better ones would be skipped."""
    for name in ("LOCKSTEP_TIER", "LOCKSTEP_START"):
        monkeypatch.delenv(name, raising=False)
    server = Server.start()
    facts = server.facts()
    server.stop()
    assert facts["tier"] == best_of_this_machine(), facts["failed"]
    assert list(facts["failed"]) == confinement.candidates()[: len(facts["failed"])]
    assert all(facts["failed"].values())


def test_a_tier_that_does_not_work_is_a_sentence(monkeypatch):
    monkeypatch.setenv("LOCKSTEP_TIER", "fortress")
    server = Server.start()
    with pytest.raises(WorldsUnavailable, match="fortress: there is no such tier; there are uid"):
        server.facts()
    server.stop()


@pytest.mark.parametrize(
    "body, words",
    [
        ("torch.ones(1 << 28)", f"A rank may use {confinement.MEMORY_BYTES >> 20} MiB"),
        ("bytearray(1 << 30)", f"A rank may use {confinement.MEMORY_BYTES >> 20} MiB"),
        ("open('x', 'wb').write(bytes(20 << 20))", f"A file may have {confinement.FILE_BYTES >> 20} MiB"),
        ("[open('/dev/null') for _ in range(2000)]", f"A rank may have {confinement.FILES_OPEN} open files"),
        ("open('/etc/shadow').read()", "A rank may write in its working directory"),
        ("[open(f'{i}', 'wb').write(bytes(9 << 20)) for i in range(20)]; time.sleep(5)", "wrote more than 64 MiB"),
        (
            "import threading; [threading.Thread(target=time.sleep, args=[5]).start() for _ in range(300)]; time.sleep(5)",
            f"{confinement.TASKS} processes and threads",
        ),
    ],
)
def test_a_bound_is_named(submit, server, body, words):
    if server.facts()["tier"] == "none":
        pytest.skip("ranks are not confined on this machine")
    said = told(submit(f"def broken(): {body}"), "broken")
    assert words in said


def test_forks_without_end_are_ended(confined, grounds):
    """By the limit of a rank's own user, or by the keeper. A thousand at most: a machine survives a grader that fails here."""
    source = """
        def broken():
            for _ in range(1000):
                if os.fork() == 0:
                    time.sleep(3)
                    os._exit(0)
            time.sleep(3)
        """
    assert "processes and threads" in told(inside(confined, grounds, source), "broken")


def test_the_server_serves_no_rank(submit, server):
    world = submit(f"""
        import json, socket
        def broken():
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect({server.address!r})
                connection.sendall(json.dumps({{"hello": True}}).encode())
                return connection.recv(1000)
            except OSError as error:
                return type(error).__name__
        """)
    assert "torch" not in told(world, "broken")


def segments() -> set[str]:
    return {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


def test_no_shared_memory_is_left(submit):
    """Made by a rank, and by a process that the rank has started and left."""
    before = segments()
    world = submit("""
        import ctypes
        def broken():
            libc = ctypes.CDLL(None)
            made = libc.shmget(0, 4096, 0o1600)
            if os.fork() == 0:
                libc.shmget(0, 4096, 0o1600)
                time.sleep(30)
            time.sleep(0.2)
            return made >= 0
        """)
    assert told(world, "broken") == "True"
    assert segments() == before
