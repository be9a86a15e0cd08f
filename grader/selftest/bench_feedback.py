"""Measures how long a student waits for a verdict, compared with the usual way of a course.

The usual way is pytest with ``torch.multiprocessing.spawn``: each run imports torch, and so does
each rank.
"""

import itertools
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from grader.diagnosis import root_cause
from grader.selftest.grading import ROOT
from grader.selftest.watching import DEADLOCK, RIGHT, WRONG, Watching, arguments, unpack_copy

SAVINGS = 15  # of each kind
RUNS = 5
# The public checks of the ring all-reduce, as courses write them.
COURSE = """
import os, pytest, torch, torch.distributed as dist, torch.multiprocessing as mp
from handout.collectives import ring_all_reduce

def rank(rank, size, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
    own = torch.arange(5, dtype=torch.float32) * (rank + 1)
    torch.testing.assert_close(
        ring_all_reduce(own), torch.arange(5, dtype=torch.float32) * sum(range(1, size + 1))
    )
    dist.destroy_process_group()

@pytest.mark.parametrize("size", [2, 4])
def test_ring_all_reduce(tmp_path, size):
    mp.spawn(rank, (size, str(tmp_path / "rendezvous")), nprocs=size)
"""


def bench_feedback() -> None:
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as scratch:
        copy = unpack_copy(Path(scratch))
        saved = seconds_from_saving(copy)
        (copy / "handout" / "collectives.py").write_text(
            (ROOT / "solutions" / "collectives.py").read_text()
        )
        own, course = seconds_of_a_check(copy)
    usual = statistics.median(course)
    print(f"\nThe checks of one problem, beside pytest with spawn (median of {RUNS}; min … max)")
    print(f"  pytest with spawn, ring all-reduce on 2 and 4 ranks:  {_told(course)}")
    print(
        f"  make test K=ring_all_reduce, the same:                {_told(own)}  {usual / statistics.median(own):.1f}×"
    )
    print(f"From saving a file to the verdict, make watch (median of {SAVINGS})")
    for kind, times in saved.items():
        print(f"  {kind:53} {_told(times)}  {usual / statistics.median(times):.1f}×")


def seconds_from_saving(copy: Path) -> dict[str, list[float]]:
    """Return the seconds from saving shift_right until its verdict is printed, by kind."""
    kinds = {
        "right": (RIGHT, "1.6 .*: passed"),
        "wrong": (WRONG, "1.6 .*: failed"),
        "a deadlock": (DEADLOCK, root_cause.DEADLOCK),
    }
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    watch = Watching(copy)
    try:
        watch.until("Done")
        watch.save(RIGHT)
        watch.until("Done")
        for kind, number in itertools.product(kinds, range(SAVINGS)):
            body, verdict = kinds[kind]
            # Save a different version each time. A name that is never used also counts as a change.
            body = f"    version_{number} = 0\n{body}"
            began = time.monotonic()
            watch.save(body)
            watch.until(verdict)
            times[kind].append(time.monotonic() - began)
            watch.until("Done")
    finally:
        # Do not send Ctrl-C: a shell that runs this in the background makes all processes ignore
        # it.
        watch.end(signal.SIGTERM)
    return times


def seconds_of_a_check(copy: Path) -> tuple[list[float], list[float]]:
    """Return the seconds of `make test K=ring_all_reduce`, and of the same checks with spawn, in turns."""
    (copy / "test_course.py").write_text(COURSE)
    environment = arguments(copy)["env"] | {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(copy)}
    # A student's environment keeps compiled modules, and has no hypothesis, whose plugin takes half
    # a second to import.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PYTEST_ADDOPTS"] = "-p no:hypothesispytest"
    ours = ["make", "test", "K=ring_all_reduce", f"PY={sys.executable}"]
    theirs = ["-c", "/dev/null", "--rootdir", str(copy), "-p", "no:cacheprovider", "-q"]
    commands = ours, [sys.executable, "-m", "pytest", *theirs, "test_course.py"]
    times: tuple[list[float], list[float]] = [], []
    for turn, (own, command) in itertools.product(range(-1, RUNS), zip(times, commands)):
        began = time.monotonic()
        done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True)
        if turn >= 0:  # the first turn compiles
            own.append(time.monotonic() - began)
        assert re.search(r"[1-9] passed", done.stdout) and "failed" not in done.stdout, done.stdout
    return times


def _told(times: list[float]) -> str:
    return f"{statistics.median(times):5.2f} s  ({min(times):.2f} … {max(times):.2f})"
