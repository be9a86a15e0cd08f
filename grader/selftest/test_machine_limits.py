"""What a container lets us have is read from its control groups, and shared out."""

import mmap
import os
import sys

import pytest

from grader.gradescope.container_limits import Box
from grader.selftest.grading import ROOT
from grader.supervisor import process_memory
from grader.wire import machine_limits

GIB = 1 << 30
MIB = 1 << 20
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


@pytest.fixture(autouse=True)
def afresh():
    """Forget the limits of this machine before the test, and those of a made-up one after it."""
    machine_limits.world_memory_limit.cache_clear()
    yield
    machine_limits.world_memory_limit.cache_clear()


@pytest.fixture
def groups(tmp_path, monkeypatch):
    """Return ``groups(own, {file: text})``, which makes up the control groups of a system."""

    def make(own: str, files: dict[str, str]) -> None:
        (tmp_path / "cgroup").write_text(own)
        for name, text in files.items():
            (tmp_path / "groups" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "groups" / name).write_text(text + "\n")

    monkeypatch.setattr(machine_limits, "OWN", tmp_path / "cgroup")
    monkeypatch.setattr(machine_limits, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(machine_limits.os, "sched_getaffinity", lambda _: range(8), raising=False)
    monkeypatch.setattr(
        machine_limits.os,
        "sysconf",
        lambda name: {"SC_PHYS_PAGES": 1 << 23, "SC_PAGE_SIZE": 4096}[name],
    )
    return make


@pytest.mark.parametrize(
    "own, files",
    [
        ("0::/\n", {"cpu.max": "150000 100000", "memory.max": str(GIB)}),
        (
            "0::/a/b\n",
            {"a/cpu.max": "150000 100000", "a/memory.max": "max", "a/b/memory.max": str(GIB)},
        ),
        (
            "0::/../host/c\n",
            {"cpu.max": "150000 100000", "memory.max": str(GIB), "memory.high": "5"},
        ),
        (
            "4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n1:name=systemd:/\n0::/\n",
            {
                "memory/memory.limit_in_bytes": str(GIB),
                "cpu,cpuacct/cpu.cfs_quota_us": "150000",
                "cpu,cpuacct/cpu.cfs_period_us": "100000",
            },
        ),
        (
            "4:memory:/x\n3:cpu:/x\n",
            {
                "memory/memory.limit_in_bytes": "9223372036854771712",
                "memory/x/memory.limit_in_bytes": str(GIB),
                "cpu/cpu.cfs_quota_us": "-1",
                "cpu/cpu.cfs_period_us": "100000",
                "cpu/x/cpu.cfs_quota_us": "75000",
                "cpu/x/cpu.cfs_period_us": "50000",
            },
        ),
    ],
    ids=["v2", "v2 below", "v2 elsewhere", "v1 in a container", "v1 below"],
)
def test_limits_are_found(groups, own, files):
    groups(own, files)
    assert (machine_limits.cores(), machine_limits.memory()) == (2, GIB)


def test_without_limits_it_is_the_machine(groups):
    groups("0::/\n", {"cpu.max": "max 100000", "memory.max": "max"})
    assert (machine_limits.cores(), machine_limits.memory()) == (8, 32 * GIB)


def test_a_system_without_groups(groups, monkeypatch, tmp_path):
    monkeypatch.setattr(machine_limits, "OWN", tmp_path / "nothing")
    assert (machine_limits.cores(), machine_limits.memory()) == (8, 32 * GIB)


@pytest.mark.parametrize(
    "memory, cores, workers, world, rank",
    [
        (768 * MIB, 1, 1, 256 * MIB, 256 * MIB),  # Gradescope's smallest
        (1536 * MIB, 1, 1, 1 * GIB, 512 * MIB),
        (768 * MIB, 2, 1, 256 * MIB, 256 * MIB),
        (2 * GIB, 2, 3, 512 * MIB, 512 * MIB),
        (24 * GIB, 2, 3, 2 * GIB, 512 * MIB),
        (256 * MIB, 4, 1, 256 * MIB, 256 * MIB),  # too little memory: the least that a world gets
    ],
)
def test_what_there_is_is_shared_out(monkeypatch, memory, cores, workers, world, rank):
    monkeypatch.setattr(machine_limits, "memory", lambda: memory)
    monkeypatch.setattr(machine_limits, "cores", lambda: cores)
    assert (
        machine_limits.workers(),
        machine_limits.world_memory_limit(4),
        machine_limits.rank_memory_limit(),
    ) == (
        workers,
        world,
        rank,
    )


def test_a_real_group_is_seen(tmp_path):
    program = (
        "from grader.wire import machine_limits as limits; print(limits.cores(), limits.memory())"
    )
    with Box(0.5, 200 * MIB) as box, open(tmp_path / "said", "w") as said:
        if not box.folders:
            pytest.skip("no control group can be made here")
        box.run([sys.executable, "-c", program], cwd=ROOT, stdout=said)
    assert (tmp_path / "said").read_text().split() == ["1", str(200 * MIB)]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_memory_counts_what_is_no_file():
    before = process_memory.memory(os.getpid())
    # This mapping is new. Python might reuse memory that it has had before.
    held = mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    held[::4096] = b"1" * len(held[::4096])
    assert 60 * MIB < process_memory.memory(os.getpid()) - before < 80 * MIB
    assert process_memory.memory(1 << 22) == 0
