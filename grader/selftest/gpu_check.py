"""Finds out in one run what a machine with GPUs can do:  make gpu-check

Every step runs in processes of its own, with a time limit. The next step also runs if a step has
failed. At the end there is one table. Without a usable GPU the command prints a sentence, and exits
with code 2.
"""

import json
import os
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from grader.check.api import CheckFailed, CheckWorld, call
from grader.intake.staging import stage_submission
from grader.rank import confinement
from grader.rank.rank_home import NCCL
from grader.session import ROOT
from grader.wire import tiers
from grader.world import gpus
from grader.world.fork_server_client import Server, WorldsUnavailable
from grader.world.gpus import Gpus
from grader.world.limits import Limits
from grader.world.report import Call
from grader.world.world import World

SECONDS = 90  # for one step
Row = tuple[str, str, str]  # the step, what was tried, the outcome


# ——— programs that other processes run. DEVICE, RANK and SIZE come from the environment.

START = """
import json, os, time
start = time.perf_counter()
def lap(name):
    global start
    now = time.perf_counter()
    laps[name], start = round(now - start, 2), time.perf_counter()
laps = {}
import torch, torch.distributed as dist
device = torch.device(os.environ["DEVICE"])
rank, size = int(os.environ.get("RANK", 0)), int(os.environ.get("SIZE", 1))
wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
"""
# How long the first use of each thing takes, and what it leaves in the process.
FIRST_USE = START + """
lap("import")
torch.ones(1, device=device); wait(); lap("context")
x = torch.ones(64, 64, device=device); (x @ x).sum().item(); lap("matmul")
backend = "nccl" if device.type == "cuda" else "gloo"
store = dist.HashStore()
dist.init_process_group(backend, store=store, rank=0, world_size=1)
dist.all_reduce(x); wait(); lap(backend)
laps["threads"] = len(os.listdir("/proc/self/task"))
laps["files"] = len(os.listdir("/proc/self/fd"))
print(json.dumps(laps), flush=True)
os._exit(0)
"""
# Whether a child works if its parent has asked torch a question before the fork.
AFTER_A_FORK = START + """
{question}
if (child := os.fork()) == 0:
    print((torch.ones(4, device=device) * 2).sum().item(), flush=True)
    os._exit(0)
os.waitpid(child, 0)
os._exit(0)
"""
# All operations of part 1 on ranks that share a GPU.
OPERATIONS = START + """
from datetime import timedelta
if device.type == "cuda":
    torch.cuda.set_device(device)
dist.init_process_group(os.environ["BACKEND"], init_method=os.environ["MEET"], rank=rank,
                        world_size=size, timeout=timedelta(seconds=20))
x = torch.full((int(os.environ["ENTRIES"]) * size,), rank + 1.0, device=device)
parts, n, total = list(x.chunk(size)), size, size * (size + 1) / 2
into, one = [torch.empty_like(part) for part in parts], torch.empty_like(parts[0])
to, source = (rank + 1) % n, (rank - 1) % n
def exchange():
    ops = [dist.P2POp(dist.isend, parts[0], to), dist.P2POp(dist.irecv, one, source)]
    [work.wait() for work in dist.batch_isend_irecv(ops)]
    return one, source + 1.0
def all_reduce():
    copy = x.clone(); dist.all_reduce(copy); return copy, total
def broadcast():
    copy = x.clone(); dist.broadcast(copy, 0); return copy, 1.0
def reduce():
    copy = x.clone(); dist.reduce(copy, 0); return (copy, total) if rank == 0 else (one.fill_(0), 0.0)
def all_gather():
    dist.all_gather(into, parts[0]); return into[-1], float(n)
def gather():
    dist.gather(parts[0], into if rank == 0 else None, 0)
    return (into[-1], float(n)) if rank == 0 else (one.fill_(0), 0.0)
def scatter():
    dist.scatter(one, parts if rank == 0 else None, 0); return one, 1.0
def reduce_scatter():
    dist.reduce_scatter(one, parts); return one, total
def all_to_all():
    out = torch.empty_like(x); dist.all_to_all_single(out, x); return out[-1:], float(n)
def barrier():
    dist.barrier(); return one.fill_(0), 0.0
def unbatched():  # each rank starts a send and then a receive, not in one batch
    [work.wait() for work in [dist.isend(parts[0], to), dist.irecv(one, source)]]
    return one, source + 1.0
for name in os.environ["OPERATIONS"].split(","):
    found, expected = globals()[name]()
    wait()
    assert bool((found == expected).all()), f"wrong values of {name}"
print("right", flush=True)
os._exit(0)
"""
NAMES = ["all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter"]
NAMES += ["reduce_scatter", "all_to_all", "barrier", "exchange"]
# Compares the solutions' stopwatch with CUDA events, for a copy from GPU to GPU memory.
STOPWATCH = START + """
from solutions.benchmarking import stopwatch
store = dist.HashStore()
dist.init_process_group("gloo", store=store, rank=0, world_size=1)
os.environ.update(LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
for power in (10, 14, 17, 20, 23, 26):
    x = torch.empty(1 << power, dtype=torch.uint8, device=device); y = torch.empty_like(x)
    copy = lambda: y.copy_(x)
    timing = stopwatch(copy, 5, 20, synchronize=wait, barrier=lambda: None)
    if device.type == "cuda":
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(21)]
        for mark in marks:
            mark.record(); copy()
        wait()
        spans = sorted(a.elapsed_time(b) / 1e3 for a, b in zip(marks, marks[1:]))
        events = spans[len(spans) // 2]
    else:
        events = timing.seconds
    print(json.dumps([1 << power, timing.seconds, events]), flush=True)
os._exit(0)
"""


def run(programs: list[str], environments: list[dict], seconds: float = SECONDS) -> list[str]:
    """Run programs at the same time, and return the last line that each printed.

    If a program failed, return the last line of its errors. If it did not end in time, return a
    text that says so.
    """
    started = [
        subprocess.Popen(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for program, environment in zip(programs, environments)
    ]
    ends, deadline = [], time.monotonic() + seconds
    for process in started:
        try:
            out, errors = process.communicate(timeout=max(0.1, deadline - time.monotonic()))
            lines = out.strip().splitlines() or errors.strip().splitlines() or ["nothing printed"]
            failed = process.returncode and errors.strip()
            ends.append(errors.strip().splitlines()[-1] if failed else lines[-1])
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            ends.append(f"not within {seconds:g} s")
    return ends


class Check:
    """The steps. ``device`` is ``cuda``, or ``cpu`` in the tests of this module."""

    def __init__(self, found: Gpus | None, device: str = "cuda") -> None:
        self.found, self.device = found, device
        self.own = {"DEVICE": device}

    def facts(self) -> Iterator[Row]:
        yield "facts", "GPUs", str(self.found)
        asked = "name,driver_version,persistence_mode,mig.mode.current,memory.total"
        line = ["nvidia-smi", f"--query-gpu={asked}", "--format=csv,noheader"]
        told = subprocess.run(line, capture_output=True, text=True, timeout=SECONDS).stdout
        for number, gpu in enumerate(told.strip().splitlines()):
            yield "facts", f"GPU {number}: {asked}", gpu
        yield "facts", "files", ", ".join(confinement.gpu_files())
        yield "facts", "kernel", confinement.machine()
        yield "facts", "nccl", self.found.nccl if self.found else ""

    def first_use(self) -> Iterator[Row]:
        for many in (1, 4, 16):
            ends = run([FIRST_USE] * many, [self.own] * many)
            slowest = max(ends, key=lambda end: end.count("not within") or len(end))
            yield "first use, seconds", f"{many} processes at once", slowest

    def forks(self) -> Iterator[Row]:
        for question in ("", "torch.cuda.device_count()", "torch.cuda.is_available()"):
            program = AFTER_A_FORK.replace("{question}", question)
            (end,) = run([program], [self.own])
            yield "a child after a fork", question or "nothing asked before", (
                "works" if end == "8.0" else end
            )

    def tiers(self) -> Iterator[Row]:
        """Have ranks of the grader use the GPU, confined in each way."""
        for tier in tiers.candidates():
            try:
                came = self._in_the_grader(tier, stands_still=False)
            except WorldsUnavailable as error:
                came = str(error)
            yield "a confined rank", tier, came

    def sharing(self) -> Iterator[Row]:
        alone = {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo"}
        several = alone | {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0"}
        ways: list[tuple[str, str, Callable[[int], dict]]] = [
            (
                "nccl, a NCCL_HOSTID each",
                "nccl",
                lambda rank: alone | NCCL | {"NCCL_HOSTID": f"{rank}"},
            ),
            ("nccl, NCCL_MULTI_RANK_GPU_ENABLE", "nccl", lambda rank: several),
            ("gloo", "gloo", lambda rank: alone),
        ]
        for name, backend, environment in ways[2 * (self.device == "cpu") :]:
            for size in (2, 4):
                for entries in (1, 1 << 18, 1 << 24):
                    yield "ranks share a GPU", f"{name}: {size} ranks, {4 * entries} B", (
                        self._operations(backend, environment, size, entries)
                    )

    def _operations(self, backend: str, environment: Callable, size: int, entries: int) -> str:
        """Run all operations, and return which of them do not work, or that all work."""

        def go(operations: str) -> list[str]:
            return self._world(backend, environment, size, entries, operations, 40)

        if set(go(",".join(NAMES))) == {"right"}:
            return "all work"
        wrong = {name: next((e for e in go(name) if e != "right"), "") for name in NAMES}
        told = "; ".join(f"{name}: {why[:100]}" for name, why in wrong.items() if why)
        return told or "each works alone, but not one after the other"

    def _world(
        self,
        backend: str,
        environment: Callable,
        size: int,
        entries: int,
        operations: str,
        limit: float,
    ) -> list[str]:
        with tempfile.TemporaryDirectory() as folder:
            common = self.own | {
                "SIZE": str(size),
                "BACKEND": backend,
                "ENTRIES": str(entries),
                "OPERATIONS": operations,
                "MEET": f"file://{folder}/meet",
            }
            own = [common | environment(rank) | {"RANK": str(rank)} for rank in range(size)]
            return run([OPERATIONS] * size, own, limit)

    def stream_order(self) -> Iterator[Row]:
        """Find the size from which two ranks that do not batch isend and irecv deadlock on nccl."""
        backend = "nccl" if self.device == "cuda" else "gloo"
        for power in range(0, 27, 2):
            ends = self._world(
                backend,
                lambda rank: NCCL | {"NCCL_HOSTID": f"{rank}", "NCCL_SOCKET_IFNAME": "lo"},
                2,
                1 << power,
                "unbatched",
                15,
            )
            if set(ends) != {"right"}:
                yield "isend, then irecv", f"{4 << power} B", ends[0]
                return
        yield "isend, then irecv", "up to 256 MiB", "goes on at every size"

    def deadlock(self) -> Iterator[Row]:
        yield "a deadlock", "what the engine says", self._in_the_grader("", stands_still=True)

    def _in_the_grader(self, tier: str, stands_still: bool) -> str:
        """Run two ranks in the grader, and return what it says of them, and after how long."""
        body = """
            import torch
            import torch.distributed as dist

            def f(x):
                x = x @ x
                if STANDS_STILL:
                    dist.recv(x, 1 - dist.get_rank())
                dist.all_reduce(x)
                return x
        """.replace("STANDS_STILL", str(stands_still))
        with self._server(tier) as server, tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o711)
            (own := Path(folder) / "own").mkdir()
            (own / "collectives.py").write_text(textwrap.dedent(body))
            stage_submission(own, staged := Path(folder) / "stage")

            def world(size: int, calls: list[Call]):
                return World(server, size, calls, staged, Limits(), gpus=self.found).run()

            began = time.monotonic()
            try:
                (run,) = CheckWorld(world, self.found)(
                    2, call("collectives.f", np.eye(2, dtype=np.float32))
                )
                values = [value.tolist() for value in run.values()]
                right = values == [[[2.0, 0.0], [0.0, 2.0]]] * 2
                said = "works" if right else f"wrong values: {values}"
            except CheckFailed as failure:
                said = " / ".join(str(failure).splitlines()[1:5])
            return f"{said}  ({time.monotonic() - began:.1f} s)"

    @contextmanager
    def _server(self, tier: str) -> Iterator[Server]:
        before = os.environ.get("LOCKSTEP_TIER")
        if tier:
            os.environ["LOCKSTEP_TIER"] = tier
        server = Server.start()
        try:
            server.facts()
            yield server
        finally:
            server.stop()
            os.environ.pop("LOCKSTEP_TIER", None)
            if before is not None:
                os.environ["LOCKSTEP_TIER"] = before

    def grading(self) -> Iterator[Row]:
        """Grade the solutions, and look at the memory of the GPUs meanwhile."""
        line = [sys.executable, "-m", "grader", "solutions", "--device", self.device]
        peak, over = [0], threading.Event()

        def look() -> None:
            query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
            while not over.wait(0.5):
                told = subprocess.run(query, capture_output=True, text=True).stdout
                peak[0] = max([peak[0], *map(int, told.split())])

        if self.device == "cuda":
            threading.Thread(target=look, daemon=True).start()
        began = time.monotonic()
        done = subprocess.run(line, capture_output=True, text=True, cwd=ROOT, timeout=480)
        over.set()
        seconds, lines = time.monotonic() - began, done.stdout.splitlines()
        told = [x for x in lines if x.startswith("Also on")][-1:] or lines[-1:] + [
            done.stderr[-300:]
        ]
        yield "make grade, solutions", f"{seconds:.0f} s, at most {peak[0]} MiB of a GPU", told[0]

    def stopwatch(self) -> Iterator[Row]:
        done = subprocess.run(
            [sys.executable, "-c", STOPWATCH],
            env=os.environ | {"PYTHONPATH": str(ROOT)} | self.own,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            cwd=ROOT,
        )
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
        for size, watch, events in rows:
            yield "stopwatch ÷ CUDA events", f"a copy of {size} B", (
                f"{watch * 1e6:.1f} µs ÷ {events * 1e6:.1f} µs = {watch / events:.2f}"
            )
        if not rows:
            yield "stopwatch ÷ CUDA events", "", done.stderr.strip().splitlines()[-1]

    def all(self, tell: Callable[[str], None]) -> list[Row]:
        """Take every step, and return the rows of the table."""
        rows: list[Row] = []
        steps = ("facts", "first_use", "forks", "tiers", "deadlock", "stopwatch", "grading")
        for name in (*steps, "stream_order", "sharing"):
            tell(f"{name} …")
            try:
                for row in getattr(self, name)():
                    rows.append(row)
            except Exception as error:  # one step that fails must not hide the others
                rows.append((name, "this step failed", f"{type(error).__name__}: {error}"[:300]))
        return rows


def table(rows: list[Row]) -> Table:
    drawn = Table(title="make gpu-check", header_style="bold", show_lines=False)
    for name in ("step", "tried", "what came of it"):
        drawn.add_column(name, overflow="fold")
    last = ""
    for step, tried, came in rows:
        drawn.add_row("" if step == last else step, tried, came)
        last = step
    return drawn


def main() -> int:
    try:
        found = gpus.usable()
    except WorldsUnavailable as error:
        print(f"{error}. So there is nothing to check.", file=sys.stderr)
        return 2
    console = Console(highlight=False, markup=False)
    print("This takes about 15 minutes.")
    console.print(table(Check(found).all(lambda text: print(text, flush=True))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
