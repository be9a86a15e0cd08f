"""What ranks may not do, tier by tier, and which message they get when they meet a bound."""

import ctypes
import errno
import json
import os
import platform
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import numpy
import pytest

from grader.check.api import CheckFailed, CheckWorld, call, per_rank
from grader.intake.staging import stage_submission
from grader.rank import confinement, seccomp
from grader.selftest.conftest import PREAMBLE
from grader.selftest.grading import ROOT, eventually
from grader.supervisor import cleanup, ending, probe, rank_users
from grader.wire import machine_limits, tiers
from grader.wire.os_support import close_from
from grader.wire.tiers import TIERS
from grader.world import world as worlds
from grader.world.fork_server_client import Server, WorldsUnavailable
from grader.world.limits import Limits

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux confines ranks")
CONFINED = [name for name in TIERS if name != "none"]


def kernel_has_landlock() -> bool:
    """Return whether the kernel has Landlock, without the grader's code, which may be broken."""
    return (
        sys.platform.startswith("linux")
        and ctypes.CDLL(None).syscall(444, None, ctypes.c_size_t(0), 1) > 0
    )


def best_of_this_machine() -> str:
    """Return the tier that a kernel with Landlock should end in.

    The tier depends on the rights of this process, and on which files other users may read.
    """
    own = dict(line.split(":\t") for line in Path("/proc/self/status").read_text().splitlines())
    powers = int(own["CapEff"], 16)
    users = max(
        int(line.split()[2]) for line in Path("/proc/self/uid_map").read_text().splitlines()
    )
    chown, read, change_group, change_user = (powers >> number & 1 for number in (0, 2, 6, 7))
    if os.geteuid() or not (chown and change_group and change_user) or users < rank_users.UIDS.stop:
        return "landlock"
    wanted = [Path(name).resolve() for name in (os.__file__, numpy.__file__, tempfile.gettempdir())]
    if all(folder.stat().st_mode & 0o001 for path in wanted for folder in path.parents):
        return "uid+landlock"
    return "uid+landlock+reader" if read else "landlock"


def told(world: CheckWorld, function: str, size: int = 1) -> str:
    """Return rank 0's value as text, or the message if the call fails."""
    try:
        return repr(world(size, call(f"collectives.{function}"))[0].values()[0])
    except CheckFailed as failure:
        return str(failure)


@pytest.fixture(scope="module", params=CONFINED)
def confined(request) -> Server:
    """Yield a server of each tier that this machine has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOCKSTEP_TIER", request.param)
        server = Server.start()
    try:
        server.facts()
    except WorldsUnavailable as error:
        server.stop()
        pytest.skip(f"not on this machine: {error}")
    yield server
    server.stop()


def inside(server: Server, grounds: Path, source: str, limits: Limits = Limits()) -> CheckWorld:
    """Return a world with a submission of this source. The server starts the world."""
    (grounds / "submission").mkdir()
    (grounds / "submission" / "collectives.py").write_text(PREAMBLE + textwrap.dedent(source))
    folder = stage_submission(grounds / "submission", grounds / "stage").folder
    return CheckWorld(
        lambda n, calls: worlds.World(server, n, calls, folder, limits).run(), None, {}
    )


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

def user():
    return os.getuid()

def judge():
    return [attempt(lambda path: open(path, "rb").read(9), f"/proc/{JUDGE}/{name}") for name in ("environ", "mem", "maps")]
"""


@pytest.mark.varied
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
    tier = TIERS[confined.facts()["tier"]]
    assert (int(told(world, "user")) in rank_users.UIDS) == tier.uid
    if not any("signal" in gap for gap in confined.facts()["gaps"]):
        assert told(world, "signals") == "'PermissionError'"


DROP_CACHES = Path("/proc/sys/vm/drop_caches")
LISTS_ITSELF = """
def lists_itself():
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        os.listdir("/proc/self/task")
        time.sleep(0.02)
    return "fine"
"""


@pytest.mark.varied
@pytest.mark.skipif(not os.access(DROP_CACHES, os.W_OK), reason="only root may drop caches")
def test_a_rank_may_read_its_own_files_when_memory_is_short(confined, grounds):
    """If memory is short, Linux drops folders of /proc from its cache.

    Landlock's rules for these folders are then dropped, too.
    """
    world = inside(confined, grounds, ATTEMPTS + LISTS_ITSELF)
    ended = threading.Event()

    def drop():
        while not ended.wait(0.2):
            DROP_CACHES.write_text("2")

    dropping = threading.Thread(target=drop)
    dropping.start()
    try:
        assert told(world, "lists_itself") == "'fine'"
    finally:
        ended.set()
        dropping.join()


@pytest.mark.skipif(not kernel_has_landlock(), reason="this kernel has no Landlock")
def test_what_a_machine_has_is_used(monkeypatch):
    """If a protection breaks, ranks get a weaker tier, and tests of better tiers are skipped."""
    for name in ("LOCKSTEP_TIER", "LOCKSTEP_START"):
        monkeypatch.delenv(name, raising=False)
    server = Server.start()
    facts = server.facts()
    server.stop()
    assert facts["tier"] == best_of_this_machine(), facts["failed"]
    assert list(facts["failed"]) == tiers.candidates()[: len(facts["failed"])]
    assert all(facts["failed"].values())


NO_LANDLOCK = "confinement._landlock = lambda *_: None"
# Code that breaks the confinement; the tier that it breaks ("with …": all tiers that have this); and
# what the probe must say. ``landlock`` is the function as it was.
BROKEN = [
    (NO_LANDLOCK, "with landlock", "a rank could read the folder grader"),
    (
        NO_LANDLOCK + "; probe.SECRETS = ['solutions']",
        "with landlock",
        "a rank could read the folder solutions",
    ),
    (
        NO_LANDLOCK + "; probe.SECRETS = ['.git']",
        "with landlock",
        "a rank could read the folder .git",
    ),
    (NO_LANDLOCK + "; probe.SECRETS = []", "landlock", "a rank could write outside its own folder"),
    ("confinement.SCOPE_SOCKETS_AND_SIGNALS = 0", "landlock", "a rank could signal the grader"),
    (
        "confinement._landlock = lambda r, w, d: landlock([], w, d)",
        "with landlock",
        "a rank could not read the submission",
    ),
    (
        "confinement._landlock = lambda r, w, d: landlock(r, w[1:], d)",
        "with landlock",
        "a rank could not write to",
    ),
    (
        "confinement._landlock = lambda r, w, d: landlock(r, w[:1], d)",
        "with landlock",
        "ranks could not communicate",
    ),
    (
        (
            "confinement.PYTHONS.clear(), confinement.SYSTEM.clear(),"
            " confinement._common.cache_clear()"
        ),
        "with landlock",
        "a rank could not read Python",
    ),
    (
        "confinement._landlock = lambda *_: os.kill(os.getpid(), 9)",
        "with landlock",
        "a trial process was ended by a signal: Killed",
    ),
    ("probe._close = lambda engine: None", "uid", "a rank could read the folder grader"),
    (
        "confinement.become = lambda *_, **__: None",
        "uid",
        "a rank could not write to its own folder",
    ),
]
PROBE = """
import json, os, shutil, sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])
from grader.rank import confinement
from grader.supervisor import fork_server, probe

fork_server._prepare([])
landlock, engine = confinement._landlock, Path(sys.argv[2])
for tier, broken in json.load(sys.stdin):
    if os.fork() == 0:
        exec(broken)
        print(json.dumps(probe.failure(tier, engine)), flush=True)
        os._exit(0)
    os.wait()
"""


def probed(engine: Path, questions: list[tuple[str, str]]) -> list[str]:
    """Return what the probe says of each tier while something is broken."""
    for name in ("grader", "solutions", ".git"):
        (engine / name).mkdir(parents=True)
    command = [sys.executable, "-I", "-c", PROBE, str(ROOT), str(engine)]
    environment = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}  # as in the server
    done = subprocess.run(
        command,
        input=json.dumps(questions),
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.long
def test_the_probe_notices_what_is_broken(grounds):
    sound = dict(zip(CONFINED, probed(grounds / "sound", [(tier, "") for tier in CONFINED])))
    works = [tier for tier, complaint in sound.items() if not complaint]
    assert works, sound
    asked = []
    for broken, where, complaint in BROKEN:
        for tier in works:
            # Before version 6, Landlock does not confine signals.
            of_signals = "signal" in complaint and confinement.landlock_abi() < 6
            if where in (tier, *(f"with {name}" for name in tier.split("+"))) and not of_signals:
                asked.append((tier, broken, complaint))
    said = probed(grounds / "engine", [(tier, broken) for tier, broken, _ in asked])
    assert len(said) == len(asked)
    wrong = [
        (*question, got) for question, got in zip(asked, said) if not got.startswith(question[-1])
    ]
    assert not wrong


def test_an_ordinary_user_that_hides_can_be_confined(grounds):
    """If only root may trace a process, its own files in /proc belong to root.

    An ordinary user's process can then not write to them.
    """
    if not confinement.landlock_abi():
        pytest.skip("this kernel has no Landlock")
    program = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from grader.rank import confinement
from grader.wire import os_support, tiers
if os.geteuid() == 0:
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
os_support.hide_from_tracers()
try:
    open("/proc/self/oom_score_adj", "r+")
except PermissionError:
    print("hidden")
confinement.get_ready()
confinement.enter(tiers.TIERS["landlock"], 0, [], [os.getcwd()], "cpu")
print("entered", os.getuid() > 0, len(os.listdir("/proc/self/fd")) > 2)
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], cwd=grounds, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("hidden\nentered True True\n", "")


FEW_DESCRIPTORS = """
import os, resource
from grader.rank import inherited
wire, output, stacks = (os.memfd_create(name) for name in ("wire", "output", "stacks"))
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
assert inherited.give_up_inherited(wire, output, stacks) == (3, 4)
for number, name in enumerate(("null", "output", "output", "wire", "stacks")):
    assert name in os.readlink(f"/proc/self/fd/{number}"), name
"""


def test_a_rank_begins_where_few_files_may_be_open():
    """If a rank could not begin, right submissions would get no points.

    No message would say why.
    """
    subprocess.run([sys.executable, "-c", FEW_DESCRIPTORS], cwd=ROOT, check=True)


def test_a_rank_begins_where_nobody_may_write_to_proc(grounds):
    """Some sandboxes show /proc read-only."""
    program = f"""
import builtins, sys
sys.path.insert(0, {str(ROOT)!r})
from grader.rank import confinement
from grader.wire import tiers
def refuse(path, *arguments, real=open):
    if str(path).startswith("/proc") and "w" in "".join(arguments):
        raise OSError(30, "Read-only file system", path)
    return real(path, *arguments)
builtins.open = refuse
confinement.get_ready()
confinement.enter(tiers.TIERS["none"], 0, [], [], "cpu")
print("entered")
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], cwd=grounds, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("entered\n", "")


@pytest.mark.long
def test_a_tier_that_does_not_work_is_a_sentence(monkeypatch):
    monkeypatch.setenv("LOCKSTEP_TIER", "fortress")
    server = Server.start()
    with pytest.raises(
        WorldsUnavailable, match="fortress: there is no such tier; the tiers are uid"
    ):
        server.facts()
    server.stop()


@pytest.mark.parametrize(
    "body, words",
    [
        ("torch.ones(1 << 28)", f"grow by at most {machine_limits.rank_memory_limit() >> 20} MiB"),
        ("bytearray(1 << 30)", f"grow by at most {machine_limits.rank_memory_limit() >> 20} MiB"),
        (
            "open('x', 'wb').write(bytes(20 << 20))",
            f"A file may have at most {tiers.FILE_BYTES >> 20} MiB",
        ),
        (
            "[open('/dev/null') for _ in range(2000)]",
            f"a process may have at most {tiers.FILES_OPEN['cpu']} open files",
        ),
        ("open('/etc/shadow').read()", "A rank may write only in its working directory"),
        (
            "import socket; socket.socket()",
            "A rank may communicate only through torch.distributed",
        ),
        (
            "[open(f'{i}', 'wb').write(bytes(9 << 20)) for i in range(20)]; time.sleep(5)",
            "wrote more than 64 MiB",
        ),
        (
            (
                "import threading; [threading.Thread(target=time.sleep, args=[5]).start() for _ in"
                " range(300)]; time.sleep(5)"
            ),
            f"{tiers.TASKS['cpu']} processes and threads",
        ),
    ],
)
def test_a_bound_is_named(submit, server, body, words):
    if server.facts()["tier"] == "none":
        pytest.skip("ranks are not confined on this machine")
    said = told(submit(f"def broken(): {body}"), "broken")
    assert words in said


@pytest.mark.long
@pytest.mark.parametrize(
    "take",
    [
        "torch.ones(100 << 18)",  # 100 MiB
        # shared memory is not a process's data
        "(shared := mmap.mmap(-1, 100 << 20)), shared.write(bytes(100 << 20))",
        (
            "subprocess.run([sys.executable, '-c', 'import time; x = bytes([1]) * (100 << 20);"
            " time.sleep(1)'])"
        ),
    ],
)
def test_memory_is_bounded_for_a_world(confined, grounds, take):
    """Each rank by itself stays below the limit."""
    source = f"""
        import mmap, subprocess
        def broken():
            held = {take}
            time.sleep(1)
        """
    world = inside(confined, grounds, source, Limits(memory_bytes=300 << 20))
    assert "took more than 300 MiB of memory together" in told(world, "broken", 4)
    assert told(world, "broken", 2) == "None"


def test_forks_without_end_are_ended(confined, grounds):
    """The limit of a rank's own user ends the forks, or the supervisor does.

    The program forks at most a thousand times, so that a machine survives a grader that fails here.
    """
    source = """
        def broken():
            for _ in range(1000):
                if os.fork() == 0:
                    time.sleep(3)
                    os._exit(0)
            time.sleep(3)
        """
    said = told(inside(confined, grounds, source), "broken")
    assert (
        "processes and threads" in said
        or f"had more than {tiers.MAX_PROCESSES_PER_RANK} processes per rank" in said
    )


def test_few_signals_can_be_queued(confined, grounds):
    """Each queued signal takes memory of the kernel that no check can measure."""
    source = """
        import ctypes, signal

        def broken():
            libc, number = ctypes.CDLL(None), signal.SIGRTMIN + 4
            signal.pthread_sigmask(signal.SIG_BLOCK, [number])
            sent = [libc.sigqueue(os.getpid(), number, i) for i in range(500)]
            return sent.count(0)
        """
    world = inside(confined, grounds, source)
    (sent,) = world(1, call("collectives.broken"))[0].values()
    assert sent <= tiers.SIGNALS_QUEUED


@pytest.mark.varied
def test_processes_are_counted(confined, grounds):
    source = """
        def broken(many):
            for _ in range(many):
                if os.fork() == 0:
                    time.sleep(3)
                    os._exit(0)
            time.sleep(0.5)
        """
    world = inside(confined, grounds, source)
    few, many = (
        [call("collectives.broken", many)]
        for many in (tiers.MAX_PROCESSES_PER_RANK - 1, tiers.MAX_PROCESSES_PER_RANK)
    )
    assert world(1, *few)[0].values() == [None]
    with pytest.raises(
        CheckFailed, match=f"had more than {tiers.MAX_PROCESSES_PER_RANK} processes per rank"
    ):
        world(1, *many)[0].values()


LEAVES = """
def f():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(1, f"{os.getppid()} {os.getpid()}\\n".encode())
            time.sleep(60)
        os._exit(0)
    os.wait()
    os.write(1, f"{os.getppid()} {os.getpid()}\\n".encode())
    time.sleep(60)
"""


@pytest.mark.varied
@pytest.mark.parametrize(
    "which, number", [("supervisor", "SIGKILL"), ("supervisor", "SIGSTOP"), ("server", "SIGKILL")]
)
def test_a_world_ends_with_whoever_looks_after_it(confined, grounds, which, number):
    """The ranks, and a process that a rank has left, end in three cases.

    The supervisor is killed, the supervisor is stopped, or the server is killed.
    """
    (grounds / "submission").mkdir()
    (grounds / "submission" / "collectives.py").write_text(PREAMBLE + LEAVES)
    folder = stage_submission(grounds / "submission", grounds / "stage").folder
    server = confined
    if which == "server":  # a server of this test's own
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("LOCKSTEP_TIER", confined.facts()["tier"])
            server = Server.start()
    world = worlds.World(server, 2, [call("collectives.f").spread(2)], folder, Limits())
    seen, known = world._on_output, set()

    def on_output(rank, pipe):
        seen(rank, pipe)
        lines = [line.split() for r in world.report.ranks for line in r.output.splitlines()]
        if len(lines) == 4 and not known:
            known.update(int(pid) for _, pid in lines)
            supervisor = next(
                int(parent) for parent, pid in lines if int(pid) in world.pids.values()
            )
            os.kill(
                supervisor if which == "supervisor" else server.process.pid, getattr(signal, number)
            )

    world._on_output = on_output
    report = world.run()
    assert report.ending == "lost" and not report.grader_fault
    if which == "server":
        eventually(lambda: not any(map(alive, known)))
        server.stop()
    assert len(known) == 4 and not any(map(alive, known))  # gone before the judge goes on
    eventually(lambda: not list(server.folder.glob("world-*")) or not server.folder.exists())


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may become somebody else")
def test_a_user_is_ended_and_nobody_else():
    users = [rank_users.user_of(os.getpid(), rank) for rank in (0, 1)]
    sleepers = [
        subprocess.Popen(["sleep", "60"], user=user, start_new_session=True)
        for user in (*users, None)
    ]
    try:
        for user in (0, os.getuid(), 65534, rank_users.UIDS.stop):
            ending.end_user(user)
        assert [sleeper.poll() for sleeper in sleepers] == [None] * 3
        ending.end_user(users[0])
        assert sleepers[0].wait(5) == -signal.SIGKILL
        assert [sleeper.poll() for sleeper in sleepers[1:]] == [None] * 2
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


ENDS_CHILDREN = """
import os, select, subprocess
from grader.supervisor import ending
from grader.wire import os_support

class Select:
    @staticmethod
    def select(*arguments):
        assert list(os_support.children(os.getpid())), "a wait although no child is left"
        return select.select(*arguments)

ending.select = Select
wake = ending.wakeup()
children = [subprocess.Popen(["sleep", "60"]).pid for _ in range(4)]
assert ending.end_descendants(children, wake=wake) == (True, set(children))
"""


def test_nobody_waits_when_the_last_process_of_a_world_has_ended():
    """With a wait, each world, and each verdict, would come 20 milliseconds later."""
    subprocess.run([sys.executable, "-c", ENDS_CHILDREN], cwd=ROOT, check=True)


def test_descriptors_are_closed_however_high():
    """The descriptors below 5 stay open."""
    read, write = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            resource.setrlimit(
                resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2
            )
            os.dup2(write, 4)
            for number in (5, 300, 4096, 9000):
                os.dup2(read, number)
            resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))  # as a rank's limit is by then
            close_from(5)
            os.write(
                4, repr(sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1]).encode()
            )
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with open(read, "rb") as answer:
        assert answer.read() == b"[0, 1, 2, 3, 4]"


@pytest.mark.parametrize("function", ["guesses", "average"])
def test_a_right_value_that_came_by_no_communication_is_no_answer(submit, function):
    world = submit("""
        def average(tensor):
            return torch.full_like(tensor, 3.0)

        def guesses(tensor):  # alone on its rank
            return torch.full_like(tensor, 3.0)
        """)
    (run,) = world(2, call(f"collectives.{function}", per_rank([1.0, 2.0], [5.0, 4.0])))
    if function == "guesses":
        return run.returns([3.0, 3.0], [3.0, 3.0])
    with pytest.raises(CheckFailed, match="rank 0 returned the right result without communicating"):
        run.returns([3.0, 3.0], [3.0, 3.0])


OTHER_WAYS = {
    "a socket": "socket.socket()",
    "a socket of no file": "socket.socket(socket.AF_UNIX)",
    "a pair's connect": "socket.socketpair()[0].connect('\\0name')",
    "a semaphore": "made(libc.semget(0, 1, 0o600))",
    "a queue of messages": "made(libc.msgget(0, 0o600))",
    "a named queue": "made(libc.mq_open(b'/lockstep', 0o102, 0o600, None))",
    "its neighbour's memory": (
        "made(libc.syscall(CALLS['process_vm_readv'], os.getppid(), None, 0, None, 0, 0))"
    ),
    "a tracer": "made(libc.ptrace(16, os.getppid(), 0, 0))",
    "a process's descriptor": "os.pidfd_open(os.getpid())",
    "a namespace": "made(libc.unshare(0x10000000))",
    "a ring": "made(libc.syscall(CALLS['io_uring_setup'], 1, bytes(120)))",
    "a lock of a file": "fcntl.lockf(open(os.__file__), fcntl.LOCK_SH | fcntl.LOCK_NB, 7, 12345)",
    "a look at a lock": "fcntl.fcntl(open(os.__file__), 5, bytes(32))",
    "a lock of a whole file": "fcntl.flock(open(os.__file__), fcntl.LOCK_SH | fcntl.LOCK_NB)",
    "news of a file": "made(libc.inotify_init1(0))",
    "a process's priority": "os.getpriority(os.PRIO_PROCESS, os.getppid())",
    "a process's group": "os.getpgid(os.getppid())",
    "events of the processor": (
        "made(libc.syscall(CALLS['perf_event_open'], bytes(120), 0, -1, -1, 0))"
    ),
    "a word that others wait at": "made(libc.syscall(FUTEX, bytes(8), 1, 1, None, None, 0))",
    "many such words": "made(libc.syscall(CALLS['futex_waitv'], None, 0, 0, None, 0))",
    "a link that holds text": "os.symlink('text', 'name')",
    "a second name": "os.link(os.__file__, 'name')",
    "a file's rights": "os.chmod('.', 0o711)",
    "a file's times": "os.utime('.', (0, 0))",
    "a file's attributes": "os.setxattr('.', 'user.name', b'text')",
    "pages of a file": (
        "os.posix_fadvise(os.open(os.__file__, os.O_RDONLY), 0, 0, os.POSIX_FADV_DONTNEED)"
    ),
    "which pages there are": (
        "os.preadv(os.open(os.__file__, os.O_RDONLY), [bytearray(1)], 0, os.RWF_NOWAIT)"
    ),
    "requests to read": "made(libc.syscall(CALLS['io_setup'], 1, ctypes.byref(ctypes.c_ulong())))",
    "another's clock": "time.clock_gettime(~os.getppid() << 3 | 2)",
    "its own processors": "os.sched_setaffinity(0, {0})",
    # The kernel finds these arguments wrong (EINVAL), because a thread must share its handlers.
    **{
        f"a child in a namespace ({bit:#x})": f"made(libc.syscall(CLONE, {bit | 0x10000}, *[None] * 4))"
        for bit in (
            0x10000000,
            0x20000,
            0x20000000,
            0x40000000,
            0x8000000,
            0x4000000,
            0x2000000,
            0x80,
        )
    },
    **{
        f"a mount by {name}": f"made(libc.syscall(CALLS['{name}'], -1, None, -1, None, 0))"
        for name in (
            *("open_tree", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick"),
            *("mount_setattr", "open_tree_attr"),
        )
    },
}


@pytest.mark.varied(12)
@pytest.mark.parametrize("way", OTHER_WAYS)
def test_a_rank_has_no_way_to_another_but_the_hub(submit, on_hub, way):
    """On gloo, each way works, or fails for a reason other than the filter of system calls."""
    if not seccomp.can_refuse():
        pytest.skip("no filter of system calls for this machine")
    world = submit(f"""
        import ctypes, fcntl, socket
        libc = ctypes.CDLL(None, use_errno=True)
        CALLS, FUTEX = {seccomp.CONNECTING[platform.machine()]!r}, {seccomp.FUTEX[platform.machine()]}
        CLONE = {seccomp.CLONE[platform.machine()]}
        def made(number):
            if number < 0:
                raise OSError(ctypes.get_errno(), "not made")
        def broken():
            try:
                {OTHER_WAYS[way]}
            except OSError as error:
                return error.errno
            return "it works"
        """)
    assert told(world, "broken") == str(errno.EPERM)


def test_a_rank_starts_threads_and_processes_without_clone3(submit, on_hub):
    """A filter cannot see whether clone3 makes a namespace, so the C library calls clone instead."""
    if not seccomp.can_refuse():
        pytest.skip("no filter of system calls for this machine")
    world = submit(f"""
        import ctypes, subprocess, threading
        libc = ctypes.CDLL(None, use_errno=True)
        def broken():
            made = libc.syscall({seccomp.CLONE3}, None, 0), ctypes.get_errno()
            ran = []
            thread = threading.Thread(target=ran.append, args=("a thread",))
            thread.start()
            thread.join()
            if (child := os.fork()) == 0:
                os._exit(7)
            ran.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            for options in (dict(), dict(start_new_session=True), dict(close_fds=False)):
                said = subprocess.run(["/bin/sh", "-c", "echo $((1 + 1))"], stdout=subprocess.PIPE, **options)
                ran.append(int(said.stdout))
            child = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 5"], {{}})
            ran.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
            return made, ran
        """)
    ran = ["a thread", 7, 2, 2, 2, 5]
    assert told(world, "broken") == str(((-1, errno.ENOSYS), ran))


@pytest.mark.parametrize("network", ["hub", "gloo"])
def test_no_key_stays_in_the_kernel(submit, monkeypatch, network):
    """The kernel keeps a user's persistent keys for days."""
    if not seccomp.can_refuse():
        pytest.skip("no filter of system calls for this machine")
    monkeypatch.setenv("LOCKSTEP_NETWORK", network)
    of_keys = [seccomp.UNCHARGED[platform.machine()][name] for name in ("add_key", "keyctl")]
    world = submit(f"""
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        def broken():
            made = [libc.syscall(number, 22, -1, -3, 0, -3) for number in {of_keys}]
            return made, ctypes.get_errno()
        """)
    assert told(world, "broken") == str(([-1, -1], errno.ENOSYS))


def test_no_thread_waits_at_a_word_that_no_thread_can_wake(submit, on_hub):
    """The C++ library waits in this way while another thread initialises a static variable.

    The library looks at the word again when the wait returns, whatever the wait returns.
    """
    if not seccomp.can_refuse():
        pytest.skip("no filter of system calls for this machine")
    world = submit(f"""
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        def broken():
            word, second = ctypes.c_int(7), (ctypes.c_long * 2)(1, 0)
            # the operation FUTEX_WAIT, until the word is not 7 any more, or for a second
            waited = libc.syscall({seccomp.FUTEX[platform.machine()]}, ctypes.byref(word), 0, 7, second, None, 0)
            return waited, ctypes.get_errno()
        """)
    assert told(world, "broken") == str((-1, errno.EAGAIN))


def test_ranks_share_no_file_where_the_hub_connects_them(submit, on_hub):
    world = submit("""
        def broken():
            return any(map(os.path.exists, ("../rendezvous", "../../rendezvous")))
        """)
    assert told(world, "broken") == "False"


def segments() -> set[str]:
    return {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


def test_no_shared_memory_is_left(submit):
    """A rank, and a process that the rank has started and left, try to make shared memory."""
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
    # On these machines, the filter of system calls refuses it: see test_world_usage.
    made = platform.machine() not in seccomp.MACHINES
    assert told(world, "broken") == str(made)
    assert segments() == before


def test_segment_from_before_the_world_is_left():
    """The segment's creator may have had the pid of a rank, and may have ended long ago."""
    libc = ctypes.CDLL(None)
    if (made := libc.shmget(0, 4096, 0o1600)) < 0:
        pytest.skip("no System V segments here")
    try:
        cleanup.remove_shared_memory(set(), {os.getpid()}, began=time.time() + 60)
        assert str(made) in segments()
        cleanup.remove_shared_memory(set(), {os.getpid()}, began=time.time())
        assert str(made) not in segments()
    finally:
        libc.shmctl(made, cleanup.IPC_RMID, None)


def test_no_variable_hides_the_warnings_of_a_python_that_a_rank_starts(submit):
    world = submit("""
        def broken():
            return os.environ.get("PYTHONWARNINGS")
        """)
    assert told(world, "broken") == "None"


@pytest.mark.parametrize(
    "linux, user, reasons",
    [
        (False, 0, {"uid+landlock": "needs Linux", "landlock": "needs Linux", "none": ""}),
        (True, 1000, {"uid+landlock": "needs root", "landlock": "", "uid": "needs root"}),
    ],
)
def test_tier_that_cannot_be_tried_says_what_it_needs(linux, user, reasons, monkeypatch):
    monkeypatch.setattr(tiers, "LINUX", linux)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(probe, "failure", lambda name, engine: "")
    assert reasons.items() <= probe.reasons_by_tier(ROOT).items()
