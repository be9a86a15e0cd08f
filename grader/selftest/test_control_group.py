"""Control groups of worlds: where they can be made, what they limit, and that they are removed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from grader.check.api import call
from grader.intake.staging import stage_submission
from grader.rank.confinement import landlock_abi
from grader.selftest.grading import eventually
from grader.wire import control_group, machine_limits
from grader.wire.control_group import Group
from grader.world.fork_server_client import Server
from grader.world.limits import Limits
from grader.world.world import World

MIB = 1 << 20
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux has control groups"
)


@pytest.fixture
def system(tmp_path, monkeypatch):
    """Return ``system(own, {file: text})``, which makes up groups, and returns their folder."""

    def make(own: str, files: dict[str, str]) -> Path:
        (tmp_path / "cgroup").write_text(own)
        for name, text in files.items():
            (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "groups" / name).write_text(text)
        return tmp_path / "groups"

    monkeypatch.setattr(machine_limits, "OWN", tmp_path / "cgroup")
    monkeypatch.setattr(machine_limits, "GROUPS", tmp_path / "groups")
    return make


@pytest.fixture
def places() -> tuple[Path, ...]:
    found, reason = control_group.find()
    if not found:
        pytest.skip(reason)
    return found


@pytest.fixture
def made(places):
    one = Group(places, f"{control_group.own_name()}-1")
    one.make()
    yield one
    assert one.remove() and not any(folder.exists() for folder in one.folders)


@pytest.mark.parametrize(
    "own, files, where",
    [
        (
            "4:memory:/a\n3:cpu:/\n",
            {"memory/a/cgroup.procs": "", "memory/cgroup.procs": ""},
            "memory/a",
        ),
        # a container sees its own group alone
        ("4:memory:/docker/x\n", {"memory/cgroup.procs": ""}, "memory"),
        ("0::/a\n", {"a/cgroup.procs": "", "a/cgroup.subtree_control": "cpu memory pids"}, "a"),
        (
            "0::/a/b\n",
            {
                **{
                    "a/b/cgroup.procs": "",
                    "a/b/cgroup.subtree_control": "",
                    "a/b/memory.max": "max\n",
                },
                **{"a/cgroup.procs": "", "a/cgroup.subtree_control": "memory pids"},
            },
            "a",
        ),
        (
            "0::/a/b\n",  # b's bound would not apply to a group in a
            {
                **{
                    "a/b/cgroup.procs": "",
                    "a/b/cgroup.subtree_control": "",
                    "a/b/memory.max": "1000\n",
                },
                **{"a/cgroup.procs": "", "a/cgroup.subtree_control": "memory pids"},
            },
            None,
        ),
        ("0::/\n", {"cgroup.procs": "", "cgroup.subtree_control": "cpu"}, None),
        ("0::/\n", {}, None),
    ],
    ids=[
        "v1",
        "v1 in a container",
        "v2",
        "v2, above",
        "v2, above a bound",
        "v2, not given",
        "no groups",
    ],
)
def test_a_place_for_groups_is_found(system, own, files, where):
    root = system(own, files)
    assert control_group._place("memory") == (where and root / where)


def test_a_bound_grows_and_does_not_shrink(tmp_path):
    one = group_with(tmp_path, dict.fromkeys(("memory.max", "memory.swap.max", "pids.max"), "max"))
    for memory, tasks in ((100, 10), (50, 5), (200, 20), (None, 30)):
        one.hold(memory, tasks)
    assert [
        one.file(name).read_text() for name in ("memory.max", "memory.swap.max", "pids.max")
    ] == ["200", "0", "30"]


def group_with(folder: Path, files: dict[str, str]) -> Group:
    """Return a group in whose folder these files have these texts."""
    group = Group([folder], "one")
    group.make()
    for name, text in files.items():
        (group.folders[0] / name).write_text(text)
    return group


@pytest.mark.parametrize(
    "files, out",
    [
        ({"memory.events": "low 0\nmax 9\noom 1\noom_kill 1\n"}, True),
        # The machine's memory has run out, and other processes may use it.
        ({"memory.events": "low 0\nmax 9\noom 0\noom_kill 1\n"}, False),
        ({"memory.events": "low 0\nmax 9\noom 0\noom_kill 0\n"}, False),
        (
            {
                "memory.oom_control": "under_oom 0\noom_kill 2\n",
                "memory.max_usage_in_bytes": "998\n",
            },
            True,
        ),
        (
            {
                "memory.oom_control": "under_oom 0\noom_kill 2\n",
                "memory.max_usage_in_bytes": "500\n",
            },
            False,
        ),
        (
            {
                "memory.oom_control": "under_oom 0\noom_kill 0\n",
                "memory.max_usage_in_bytes": "1000\n",
            },
            False,
        ),
        ({}, False),
    ],
)
def test_memory_is_blamed_where_the_groups_own_bound_was_met(tmp_path, files, out):
    one = group_with(tmp_path, files)
    one.memory = 1000
    assert one.is_out_of_memory() == out


@pytest.mark.parametrize(
    "files, out",
    [
        ({"pids.events": "max 0\n", "pids.peak": "50\n"}, False),
        ({"pids.events": "max 1\n", "pids.peak": "50\n", "pids.current": "2\n"}, True),
        ({"pids.events": "max 1\n", "pids.peak": "20\n"}, False),  # a group above refused it
        ({"pids.events": "max 1\n", "pids.current": "50\n"}, True),
        ({"pids.events": "max 1\n", "pids.current": "20\n"}, False),
        ({}, False),
    ],
)
def test_processes_are_blamed_where_the_groups_own_bound_was_met(tmp_path, files, out):
    one = group_with(tmp_path, files)
    one.tasks = 50
    assert one.is_out_of_tasks() == out


def inside(made: Group, program: str) -> subprocess.Popen:
    """Start a process that runs this program in a group."""
    source = (
        "import os, sys, time\nfor path in sys.argv[1:]: open(path + '/cgroup.procs',"
        f" 'w').write('0')\n{program}"
    )
    command = [sys.executable, "-S", "-c", source, *map(str, made.folders)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_memory_is_held(made):
    made.hold(64 * MIB, 100)
    assert inside(made, f"x = b'1' * {30 * MIB}").wait() == 0 and not made.is_out_of_memory()
    assert (
        inside(made, f"x = b'1' * {100 * MIB}").wait() == -signal.SIGKILL
        and made.is_out_of_memory()
    )


def test_processes_are_held(made):
    made.hold(64 * MIB, 3)
    program = "for _ in range(5): os.fork() or (time.sleep(1), os._exit(0))"
    assert (
        inside(made, program).wait() == 1 and made.is_out_of_tasks() and not made.is_out_of_memory()
    )


def test_groups_of_the_dead_are_swept(places):
    """The processes in these groups are killed. The groups of living makers stay."""
    dead = subprocess.Popen([sys.executable, "-S", "-c", ""])
    name = control_group.own_name().replace(f"-{os.getpid()}-", f"-{dead.pid}-")
    dead.wait()
    left, own = Group(places, f"{name}-1"), Group(places, f"{control_group.own_name()}-1")
    left.make(), own.make()
    try:
        sleeper = inside(left, "print(1, flush=True); time.sleep(60)")
        sleeper.stdout.readline()
        control_group.clean_up(places)
        assert sleeper.wait(5) == -signal.SIGKILL
        assert not any(folder.exists() for folder in left.folders) and all(
            folder.exists() for folder in own.folders
        )
    finally:
        left.remove(), own.remove()


@pytest.fixture
def server(places) -> Server:
    server = Server.start()
    yield server
    server.stop()


def groups_of(server: Server, places: tuple[Path, ...]) -> list[Path]:
    return [path for place in places for path in place.glob(f"lockstep-*-{server.process.pid}-*")]


SOURCE = """
import os, time
def where():
    return open("/proc/self/cgroup").read()
def burst(megabytes):
    held = b"1" * (megabytes << 20)
    time.sleep(1)
def stays():
    print(os.getppid(), flush=True)
    time.sleep(60)
"""


def world(server: Server, grounds: Path, function: str, *arguments: int, size: int = 2) -> World:
    if not (grounds / "submission").exists():
        (grounds / "submission").mkdir()
        (grounds / "submission" / "collectives.py").write_text(SOURCE)
        stage_submission(grounds / "submission", grounds / "stage")
    calls = [call(f"collectives.{function}", *arguments).spread(size)]
    return World(server, size, calls, grounds / "stage", Limits(memory_bytes=128 * MIB))


def test_a_world_has_a_group_of_its_own(server, places, grounds):
    told = []
    for _ in range(2):
        report = world(server, grounds, "where").run()
        own = [rank.outcomes[0].value for rank in report.ranks]
        names = [
            {line.rpartition("/")[2] for line in text.splitlines() if "lockstep" in line}
            for text in own
        ]
        assert len(names[0]) == 1 and names[0] == names[1]
        told += names[0]
        eventually(
            lambda: not [path for path in groups_of(server, places) if path.name == told[-1]]
        )
    assert told[0] != told[1]


@pytest.mark.long
def test_who_takes_memory_in_one_burst_is_told(server, grounds):
    report = world(server, grounds, "burst", 450).run()
    assert (
        report.ending == "excessive" and "took more than 128 MiB of memory together" in report.limit
    )
    assert world(server, grounds, "burst", 20).run().ending == "finished"


@pytest.mark.long
@pytest.mark.parametrize("which", ["supervisor", "server"])
def test_a_group_goes_with_whoever_is_killed(server, places, grounds, which):
    server.facts()
    one = world(server, grounds, "stays")
    seen, killed = one._on_output, []

    def on_output(rank, pipe):
        seen(rank, pipe)
        if (text := one.report.ranks[rank].output.split()) and not killed:
            killed.append(int(text[0]) if which == "supervisor" else server.process.pid)
            os.kill(killed[0], signal.SIGKILL)

    one._on_output = on_output
    before = set(groups_of(server, places))
    assert one.run().ending == "lost"
    if which == "server":
        server.process.wait()
        again = Server.start()
        again.facts()
        again.stop()
        eventually(lambda: not groups_of(server, places))
    else:
        assert before  # the group of a waiting supervisor, which then runs this world
        eventually(lambda: not before & set(groups_of(server, places)))
        assert world(server, grounds, "where").run().ending == "finished"


@pytest.mark.long
def test_a_server_leaves_no_group(places, grounds):
    server = Server.start()
    assert world(server, grounds, "where").run().ending == "finished"
    server.stop()
    assert not groups_of(server, places)


def test_without_groups_worlds_are_looked_at(monkeypatch, grounds):
    monkeypatch.setenv("LOCKSTEP_GROUPS", "none")
    server = Server.start()
    facts = server.facts()
    report = world(server, grounds, "where").run()
    server.stop()
    assert facts["why_no_control_group"] and any(
        "between two measurements" in gap for gap in facts["gaps"]
    )
    assert report.ending == "finished" and "lockstep" not in report.ranks[0].outcomes[0].value


@pytest.mark.long
@pytest.mark.skipif(not landlock_abi(), reason="this kernel has no Landlock")
def test_ranks_that_could_leave_are_not_said_to_be_held(monkeypatch, places):
    for tier, reason in (("none", "student code can write to"), ("landlock", "")):
        monkeypatch.setenv("LOCKSTEP_TIER", tier)
        server = Server.start()
        said = server.facts()["why_no_control_group"]
        server.stop()
        assert said.startswith(reason) and bool(said) == bool(reason)
