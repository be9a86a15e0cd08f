"""Grade right submissions on a busy machine, again and again.

    make load LOAD='--gradings 1000 --at-a-time 10'

A grading judges one part of one right submission, with inputs of its own. Several gradings run at a
time, so that they load the machine for each other. The command prints what went wrong, and exits
with 1 if anything did. Every few seconds it also lets a deadlock be judged, to measure how long the
verdict takes on such a machine.
"""

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from grader.assignment import PARTS
from grader.selftest.bench import medians, seconds_to_verdict, stage_deadlock
from grader.selftest.grading import ROOT, command
from grader.selftest.mutation.trials import LOST
from grader.world.fork_server_client import Server

LOOK_EVERY = 5  # seconds to wait before each deadlock
PATIENCE = 1800  # seconds for one grading: far beyond what any takes
# How long all checks of a grading may take is not what is tested, and depends on the load.
OPTIONS = ("--workers", "1", "--seconds", f"{PATIENCE}")


@dataclass
class Grading:
    """One grading of one part of one submission.

    ``faults`` holds what each check without full marks said, or how the grading itself failed.
    """

    submission: str
    part: str
    seconds: float
    faults: list[str]


def right() -> list[tuple[Path, str]]:
    """Return the right submissions that are whole files, as (folder, part).

    Parts that are known to lose marks are left out.
    """
    folders = [
        ROOT / "solutions",
        *sorted(path for path in (ROOT / "grader/selftest/submissions").iterdir()),
    ]
    return [
        (folder, part)
        for folder in folders
        for part in PARTS
        if (folder / f"{part}.py").exists() and (folder.name, part) not in LOST
    ]


def graded(folder: Path, part: str, address: str, into: Path) -> Grading:
    results = into / f"{time.monotonic_ns()}.json"
    began = time.monotonic()
    asked = command(folder, results, *OPTIONS, "--part", part, server=address)
    name = folder.name
    try:
        done = subprocess.run(**asked, capture_output=True, timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        return Grading(name, part, PATIENCE, [f"not done after {PATIENCE} s"])
    seconds = time.monotonic() - began
    if done.returncode or not results.exists():
        return Grading(name, part, seconds, [f"exit code {done.returncode}: {done.stderr[-1000:]}"])
    tests = json.loads(results.read_text())["tests"]
    results.unlink()
    lost = [
        test for test in tests if test["score"] < test["max_score"] or test["status"] != "passed"
    ]
    faults = [f"{test['name']}: {test.get('output', '')[:1500]}" for test in lost]
    return Grading(name, part, seconds, faults if tests else ["no check was made"])


def _tell(future: Future[Grading]) -> None:
    """Print what was wrong with a finished grading, if anything was."""
    if not future.cancelled() and (one := future.result()).faults:
        print(
            f"\n{one.submission}, {one.part}, after {one.seconds:.0f} s:",
            *one.faults,
            sep="\n    ",
            flush=True,
        )


@dataclass
class Measured:
    """What the run has measured."""

    began: float = field(default_factory=time.monotonic)
    done: list[Grading] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    verdicts: list[float] = field(default_factory=list)  # seconds from a deadlock to its verdict

    def tell(self, at_a_time: int) -> None:
        parts = {(one.submission, one.part) for one in self.done}
        print(
            f"\n{len(self.done)} gradings of {len(parts)} right parts in"
            f" {(time.monotonic() - self.began) / 60:.1f} min, {at_a_time} at a time"
        )
        print(
            f"load: median {statistics.median(self.loads):.1f}, at most {max(self.loads):.1f}, on"
            f" {os.cpu_count()} cores"
        )
        seconds = [one.seconds for one in self.done]
        print(
            f"one grading: median {statistics.median(seconds):.1f} s, at most {max(seconds):.1f} s"
        )
        print(
            f"from a deadlock to its verdict, all processes gone ({len(self.verdicts)} times):"
            f" {medians(self.verdicts)}"
        )
        print(f"without full marks: {sum(bool(one.faults) for one in self.done)}")


def grade_side_by_side(gradings: int, at_a_time: int) -> int:
    """Grade right submissions, several at a time. Return the command's exit code.

    Ctrl-C ends the run early. The command then prints what it has measured until then.
    """
    chosen = itertools.islice(itertools.cycle(right()), gradings)
    measured, is_whole = Measured(), True
    server = Server.start()
    try:
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(at_a_time) as pool:
            deadlock = stage_deadlock(Path(folder))
            waiting = [pool.submit(graded, *one, server.address, Path(folder)) for one in chosen]
            for future in waiting:
                future.add_done_callback(_tell)
            try:
                while not all(future.done() for future in waiting):
                    time.sleep(LOOK_EVERY)
                    measured.loads.append(os.getloadavg()[0])
                    measured.verdicts.append(seconds_to_verdict(server, deadlock))
                    if len(measured.loads) % 12 == 0:
                        done = sum(future.done() for future in waiting)
                        print(f"{done} of {gradings}", flush=True)
            except KeyboardInterrupt:
                is_whole = False
            # Ctrl-C also ends the gradings that are under way: these do not count.
            ended = [future for future in waiting if future.done()]
            pool.shutdown(cancel_futures=True)
            measured.done = [future.result() for future in ended]
    finally:
        server.stop()
    if measured.done and measured.loads:
        measured.tell(at_a_time)
    if not is_whole:
        print(f"interrupted after {len(measured.done)} of {gradings} gradings")
        return 130
    return 1 if any(one.faults for one in measured.done) else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m grader.selftest.load", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("--gradings", type=int, default=1000, help="how many (1000)")
    parser.add_argument("--at-a-time", type=int, default=10, help="how many side by side (10)")
    arguments = parser.parse_args()
    if min(arguments.gradings, arguments.at_a_time) < 1:
        parser.error("at least one")
    return grade_side_by_side(arguments.gradings, arguments.at_a_time)


if __name__ == "__main__":
    sys.exit(main())
