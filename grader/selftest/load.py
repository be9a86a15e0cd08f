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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from grader.assignment import PARTS
from grader.selftest.bench import medians, seconds_to_verdict, stage_deadlock
from grader.selftest.grading import ROOT, command
from grader.selftest.mutation.trials import LOST
from grader.world.fork_server_client import Server

LOOK_EVERY = 5  # seconds to wait before each deadlock
PATIENCE = 900  # seconds for one grading: far beyond what any takes


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
    asked = command(folder, results, "--workers", "1", "--part", part, server=address)
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


def _tell(one: Grading) -> None:
    """Print what was wrong with a grading that is done, if anything was."""
    if one.faults:
        print(
            f"\n{one.submission}, {one.part}, after {one.seconds:.0f} s:",
            *one.faults,
            sep="\n    ",
            flush=True,
        )


def grade_side_by_side(gradings: int, at_a_time: int) -> bool:
    """Grade right submissions, several at a time. Return whether all had full marks."""
    chosen = list(itertools.islice(itertools.cycle(right()), gradings))
    loads, verdicts, began = [], [], time.monotonic()
    server = Server.start()
    try:
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(at_a_time) as pool:
            deadlock = stage_deadlock(Path(folder))
            waiting = [pool.submit(graded, *one, server.address, Path(folder)) for one in chosen]
            for future in waiting:
                future.add_done_callback(lambda future: _tell(future.result()))
            while not all(future.done() for future in waiting):
                time.sleep(LOOK_EVERY)
                loads.append(os.getloadavg()[0])
                verdicts.append(seconds_to_verdict(server, deadlock))
                if len(loads) % 12 == 0:
                    print(f"{sum(future.done() for future in waiting)} of {gradings}", flush=True)
            done = [future.result() for future in waiting]
    finally:
        server.stop()
    wrong = [one for one in done if one.faults]
    seconds = [one.seconds for one in done]
    print(
        f"\n{len(done)} gradings of {len(set(chosen))} right parts in"
        f" {(time.monotonic() - began) / 60:.1f} min, {at_a_time} at a time"
    )
    print(
        f"load: median {statistics.median(loads):.1f}, at most {max(loads):.1f}, on"
        f" {os.cpu_count()} cores"
    )
    print(f"one grading: median {statistics.median(seconds):.1f} s, at most {max(seconds):.1f} s")
    print(
        f"from a deadlock to its verdict, all processes gone ({len(verdicts)} times):"
        f" {medians(verdicts)}"
    )
    print(f"without full marks: {len(wrong)}")
    return not wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m grader.selftest.load", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("--gradings", type=int, default=1000, help="how many (1000)")
    parser.add_argument("--at-a-time", type=int, default=10, help="how many side by side (10)")
    arguments = parser.parse_args()
    if min(arguments.gradings, arguments.at_a_time) < 1:
        parser.error("at least one")
    return 0 if grade_side_by_side(arguments.gradings, arguments.at_a_time) else 1


if __name__ == "__main__":
    sys.exit(main())
