"""Measure how fast the grader is, compared with torch:  make bench

The command prints (``BENCH='--only worlds deadlock'`` measures a part of this):
- the median time of whole worlds, from the request until the last process is gone. In turns with
  them, ``torch.multiprocessing.spawn`` does the same: start, one all-reduce, result back, gone;
- the time from a deadlock to its verdict;
- the time from saving a file to its verdict (`make watch`), and the time of `make test K=ring`,
  compared with pytest and ``spawn``;
- the wall time and the peak memory of grading the solutions and the handout, and how the time
  divides;
- the time of a step of the reference, compared with torch's own.
"""

import argparse
import json
import os
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np

from grader.check.api import call
from grader.intake.staging import stage_submission
from grader.selftest.bench_feedback import bench_feedback
from grader.selftest.bench_steps import bench_steps
from grader.selftest.grading import ROOT
from grader.wire.machine_limits import cores
from grader.world.fork_server_client import Server
from grader.world.limits import Limits
from grader.world.world import World

DEADLOCK = """
import time
import torch.distributed as dist

def stand_still(x):
    if dist.get_rank() == 0:
        print(time.monotonic(), flush=True)
    other = 1 - dist.get_rank()
    dist.send(x, other)
    dist.recv(x, other)
    return x
"""

SPAWN = """
import os, sys, tempfile, torch, torch.distributed as dist, torch.multiprocessing as mp

def rank(rank, size, path, queue):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
    x = torch.ones(4)
    dist.all_reduce(x)
    queue.put(x.tolist())
    dist.destroy_process_group()

if __name__ == "__main__":
    import time
    sizes = [int(size) for size in sys.argv[1:]]
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            queue = mp.get_context("spawn").SimpleQueue()
            mp.spawn(rank, (size, folder + "/rendezvous", queue), nprocs=size)
            results = [queue.get() for _ in range(size)]
            assert results == [[float(size)] * 4] * size
            print(time.monotonic() - began, flush=True)
"""


SECTIONS = ("worlds", "deadlock", "feedback", "grading", "steps")


def medians(values: list[float]) -> str:
    return (
        f"{statistics.median(values) * 1e3:7.0f} ms  ({min(values) * 1e3:.0f} …"
        f" {max(values) * 1e3:.0f})"
    )


def one_world(server: Server, folder: Path, size: int) -> float:
    """Run a world with one all-reduce, and return its seconds.

    They last from the request until every process of the world is gone.
    """
    began = time.monotonic()
    x = np.ones(4, np.float32)
    report = World(
        server, size, [call("collectives.all_reduce", x).spread(size)], folder, Limits()
    ).run()
    assert [rank.outcomes[0].value.tolist() for rank in report.ranks] == [[float(size)] * 4] * size
    return time.monotonic() - began


def bench_worlds(server: Server, folder: Path, scratch: Path) -> None:
    program = scratch / "spawn.py"
    program.write_text(SPAWN)
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    print(
        "\nA fresh world: start, one all-reduce, results back, gone (median of 15, and of 3 for"
        " spawn; min … max)"
    )
    print("  ranks   forked from the warm server        torch.multiprocessing.spawn        ratio")
    for size in (1, 2, 4, 8):
        one_world(server, folder, size)  # a warm-up, which is not counted
        forked, spawned = [], []
        for _ in range(3):  # in turns, so that a drift of the machine's speed affects both
            forked += [one_world(server, folder, size) for _ in range(5)]
            done = subprocess.run(
                [sys.executable, str(program), str(size)],
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            )
            spawned.append(float(done.stdout))
        ratio = statistics.median(spawned) / statistics.median(forked)
        print(f"  {size:5}   {medians(forked):33}  {medians(spawned):33}  {ratio:5.0f}×")


def stage_deadlock(scratch: Path) -> Path:
    """Stage a submission whose two ranks stand still, and return its folder."""
    submission = scratch / "deadlock"
    submission.mkdir()
    (submission / "collectives.py").write_text(DEADLOCK)
    return stage_submission(submission, scratch / "deadlock-stage").folder


def seconds_to_verdict(server: Server, staged: Path) -> float:
    """Return the seconds from a standstill of two ranks until all their processes are gone."""
    request = call("collectives.stand_still", np.ones(4, np.float32)).spread(2)
    report = World(server, 2, [request], staged, Limits()).run()
    assert report.ending == "stuck", report.ending
    return time.monotonic() - float(report.ranks[0].output)


def bench_deadlock(server: Server, scratch: Path) -> None:
    staged = stage_deadlock(scratch)
    times = [seconds_to_verdict(server, staged) for _ in range(7)]
    print(f"\nFrom a deadlock to its verdict, all processes gone (7 times):  {medians(times)}")


class Memory(threading.Thread):
    """Samples the sum of the PSS of a process and all its descendants, and keeps the peak in bytes.

    All these processes are stopped during a sample, because worlds come and go faster than their
    memory can be read. Otherwise pages that move from one process to another would count twice.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid, self.peak, self.over = pid, 0, False

    def run(self) -> None:
        while not self.over:
            stopped: list[int] = []
            # A process may start others until it is stopped, so look again.
            while new := [pid for pid in family(self.pid) if pid not in stopped]:
                for pid in new:
                    _signal(pid, signal.SIGSTOP)
                stopped += new
            self.peak = max(self.peak, sum(map(pss, stopped)))
            # Let descendants go on before their ancestors, because the fork server ends supervisors
            # that it finds stopped.
            for pid in reversed(stopped):
                _signal(pid, signal.SIGCONT)
            time.sleep(0.1)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def family(pid: int) -> list[int]:
    parents = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(entry.parent.name)] = int(entry.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    found = [pid]
    for ancestor in found:  # the list grows meanwhile
        found += [child for child, parent in parents.items() if parent == ancestor]
    return found


def pss(pid: int) -> int:
    """Return the PSS of a process in bytes, or 0 if the process has ended.

    In PSS, each process that shares a page counts its part of the page.
    """
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def bench_grading(submission: str, folder: Path, scratch: Path, times: int) -> None:
    """Grade a submission several times, and print the time and the memory that this takes.

    ``folder`` is the submission of the empty worlds, which show how little time is possible. Raises
    AssertionError if a grading gives the solutions less than full marks.
    """
    seconds, peaks, shares = [], [], []
    path = scratch / "results.json"
    # Samples of the memory stop the grader for moments, so these runs are not timed.
    for sampled in [False] * times + [True] * ((times + 1) // 2):
        began = time.monotonic()
        command = [sys.executable, "-m", "grader", submission, "--results", str(path)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        if sampled:
            memory = Memory(process.pid)
            memory.start()
        assert process.wait() == 0
        if sampled:
            memory.over = True
            memory.join()
            peaks.append(memory.peak)
        else:
            seconds.append(time.monotonic() - began)
            shares.append(time_shares(json.loads(path.read_text()), seconds[-1]))
        lost = [t["name"] for t in json.loads(path.read_text())["tests"] if is_lost(t)]
        assert submission != "solutions" or not lost, lost
    peak = f"{max(peaks) / 1e6:.0f} MB" if max(peaks) else "unknown here"
    print(
        f"\nGrading {submission:10} (median of {times}):  {medians(seconds)}   peak memory, sum of"
        f" PSS: {peak}"
    )
    start, worlds, judging, other = (statistics.median(share) for share in zip(*shares))
    document = json.loads(path.read_text())
    sizes, fresh = (
        [size for test in document["tests"] for size in test["extra_data"][name]]
        for name in ("worlds", "fresh_worlds")
    )
    print(
        f"  start {start:.1f} s; worlds {worlds:.1f} s, judging {judging:.1f} s, waiting and the"
        f" end {other:.1f} s"
    )
    print(f"  {len(sizes)} worlds, {len(sizes) - len(fresh)} of them with ranks of an earlier one")
    alone = empty_worlds(folder, fresh)
    print(
        f"  floor: {len(fresh)} empty worlds, {alone:.1f} s ÷ {cores()} cores ="
        f" {alone / cores():.1f} s"
    )


def is_lost(test: dict) -> bool:
    """Return whether a test of results.json has less than its full score."""
    return test["score"] < test["max_score"]


def time_shares(document: dict, total: float) -> tuple[float, float, float, float]:
    """Return how the wall time divides, in seconds.

    The shares are: until the first check, in worlds, in checks outside of worlds, and the rest.
    """
    checks = [test["extra_data"] for test in document["tests"]]
    workers = document["extra_data"]["workers"]
    start = document["extra_data"]["seconds_to_start"]
    worlds = sum(check["seconds_in_worlds"] for check in checks) / workers
    judging = sum(check["seconds"] for check in checks) / workers - worlds
    return start, worlds, judging, total - start - worlds - judging


def empty_worlds(folder: Path, sizes: list[int]) -> float:
    """Return the seconds of worlds of these sizes, one after the other, that do next to nothing.

    Their ranks meet and compute one loss. Each size is measured 15 times, and its median counts.
    """
    server = Server.start()

    def once(size: int) -> float:
        began = time.monotonic()
        request = call("mlp.loss", np.ones(4, np.float32)).spread(size)
        assert World(server, size, [request], folder, Limits()).run().ending == "finished"
        return time.monotonic() - began

    seconds = {size: statistics.median(once(size) for _ in range(15)) for size in set(sizes)}
    server.stop()
    return sum(seconds[size] for size in sizes)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--times", type=int, default=3, metavar="N", help="time N whole gradings (3)"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        choices=SECTIONS,
        default=SECTIONS,
        help="measure only these, instead of all",
    )
    options = parser.parse_args()
    server = Server.start()
    facts = server.facts()
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, torch"
        f" {facts['torch']}, {facts['way']}"
    )
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as scratch_name:
        scratch = Path(scratch_name)
        scratch.chmod(0o711)  # ranks of any user pass through
        folder = stage_submission(ROOT / "solutions", scratch / "stage").folder
        if "worlds" in options.only:
            bench_worlds(server, folder, scratch)
        if "deadlock" in options.only:
            bench_deadlock(server, scratch)
        server.stop()
        if "feedback" in options.only:
            bench_feedback()
        if "grading" in options.only:
            for submission in ("solutions", "handout"):
                bench_grading(submission, folder, scratch, options.times)
    if "steps" in options.only:
        bench_steps()


if __name__ == "__main__":
    main()
