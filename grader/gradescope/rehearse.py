"""Run on this machine what Gradescope runs.

    python -m grader.gradescope.rehearse [--keep] [--one-of SEED]

The program packs the autograder, and unpacks it into a private root that looks like
``/autograder``. There it runs setup.sh. Then it runs run_autograder on the solutions, on the stubs
and on a hostile submission. The runs have the limits of the platform's smallest container, if this
machine can set these limits. The hostile submission is left out if the course has no part 1. If
``--one-of`` is given, the program runs only one of the submissions. Files in ``dist`` stay as they
are. SIGTERM ends the program as Ctrl-C does. The exit code is 0 if every result is as expected, and
1 if a result is different. If the program cannot rehearse, it prints the reason and exits with 2.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
from rich.console import Console
from rich.table import Table

from grader.course_file import BadCourse, course
from grader.gradescope.container_limits import Box, Usage, run
from grader.packaging import pack
from grader.packaging.visibility import ROOT
from grader.wire import removal

CORES, MEMORY = 0.5, 768 << 20  # the platform's default container
INDEX_SECONDS = 10  # how long to wait for the answer of a package index
PLATFORM_SECONDS = 600  # after this time, the platform writes a score of 0
SCHEMA = ROOT / "grader" / "selftest" / "results.schema.json"
METADATA: dict[str, Any] = {
    "id": 1,
    "created_at": "2030-01-02T12:00:00.000000-08:00",
    "assignment": {
        "due_date": "2030-01-09T12:00:00.000000-08:00",
    },
    "users": [{"email": "student@example.edu", "id": 1, "name": "A student"}],
    "previous_submissions": [],
}


# HOSTILE is appended to the solutions of part 1. Each function does all the harm that it can. Only
# problems that use one of these functions may lose points.
HOSTILE = """
import mmap, os, pathlib, shutil

def broadcast(tensor, root):
    while True:
        os.fork()

def gather(tensor, root):
    while True:
        print("spam" * 1000, flush=True)

def reduce(tensor, root, op="sum"):
    for path in (
        "results/results.json",
        "source/grader/check/call_result.py",
        "source/grader/hidden/test_collectives.py",
    ):
        try:
            (pathlib.Path({root!r}) / path).write_text("ACHIEVED")
        except OSError:
            pass
    shutil.rmtree({root!r}, ignore_errors=True)
    return None

def all_gather(tensor):
    held = []
    while True:
        held.append(mmap.mmap(-1, 8 << 20))
        held[-1].write(os.urandom(8 << 20))

def all_to_all(tensors):
    return [bytearray(b"1") * (4 << 20) for _ in range(1 << 20)]
"""
HARMED = {"1.1", "1.3"}


@dataclass
class Play:
    """A submission, and the problems in which it must lose points.

    In all other problems it must get all points.
    """

    name: str
    folder: Path
    loses: set[str]
    more: str = ""  # appended to collectives.py


def plays() -> list[Play]:
    """Return the submissions to rehearse. Without part 1, there is no hostile submission."""
    found = [
        Play("the solutions", ROOT / "solutions", set()),
        Play("the stubs", ROOT / "handout", set(course().problems)),
    ]
    if "collectives" in course().parts:
        found.append(Play("a hostile one", ROOT / "solutions", HARMED, HOSTILE))
    return found


def metadata() -> dict:
    """Return the platform's metadata of a submission that is not late."""
    rules = course()
    total = rules.points_of(set(rules.problems) - rules.extra)
    named = {"title": rules.course.assignment, "total_points": str(total)}
    return METADATA | {"assignment": METADATA["assignment"] | named}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m grader.gradescope.rehearse", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument("--keep", action="store_true", help="do not delete the temporary folder")
    parser.add_argument(
        "--one-of", metavar="SEED", help="rehearse one submission only; SEED chooses which one"
    )
    arguments = parser.parse_args()
    seed = arguments.one_of
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    # A program in the background of a shell, as in `make sample`, ignores SIGINT. SIGTERM ends it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    root = Path(tempfile.mkdtemp(prefix="lockstep-rehearsal-"))
    try:
        chosen = plays() if seed is None else [random.Random(seed).choice(plays())]
        return _rehearse(root, console, chosen)
    except (pack.CannotPack, BadCourse) as error:
        print(f"cannot rehearse: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("cannot rehearse: interrupted", file=sys.stderr)
        return 2
    finally:
        if arguments.keep:
            console.print(f"Not deleted: {root}", markup=False, soft_wrap=True)
        else:
            removal.remove(root)


def _rehearse(root: Path, console: Console, chosen: Sequence[Play]) -> int:
    root.chmod(0o755)  # as /autograder is
    # The zip is not written into dist/: an instructor may keep another zip there for the upload.
    packed = root / "autograder.zip"
    pack.write(pack.autograder(), packed)
    with zipfile.ZipFile(packed) as archive:
        archive.extractall(root / "source")
    packed.unlink()
    for name in pack.EXECUTABLE:
        (root / "source" / name).chmod(0o755)
    began = time.monotonic()
    environment = dict(os.environ)
    index = course().install.torch_index
    if index and "TORCH_INDEX" not in environment and not _can_be_reached(index):
        console.print(f"{index} cannot be reached, so torch comes from PyPI.", markup=False)
        environment["TORCH_INDEX"] = ""
    if run(["./setup.sh"], cwd=root / "source", env=environment):
        print("cannot rehearse: setup.sh failed, see above", file=sys.stderr)
        return 2
    console.print(f"setup.sh: {time.monotonic() - began:.0f} s")
    shutil.copy(root / "source" / "run_autograder", root / "run_autograder")
    (root / "submission_metadata.json").write_text(json.dumps(metadata()))
    table = Table("submission", "points", "seconds", "peak memory", "confined by", "verdict")
    good, held = True, ""
    for play in chosen:
        complaint, row, held = _play(play, root)
        good &= not complaint
        table.add_row(play.name, *row, complaint or "as expected", style="red" if complaint else "")
    console.print(table)
    console.print(
        f"Each run was {held}. The platform's time limit is {PLATFORM_SECONDS} s.", markup=False
    )
    return 0 if good else 1


def _can_be_reached(index: str) -> bool:
    try:
        urllib.request.urlopen(f"{index}/torch/", timeout=INDEX_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True


def _play(play: Play, root: Path) -> tuple[str, list[str], str]:
    """Run run_autograder on a submission.

    Return a sentence that says what is wrong with the run, a row of the table, and a text about the
    limits that were applied. The sentence is "" if nothing is wrong.
    """
    for folder in ("submission", "results"):
        removal.remove(root / folder)
        (root / folder).mkdir()
    for name in course().files:
        more = play.more.replace("{root!r}", repr(str(root))) if name == "collectives.py" else ""
        (root / "submission" / name).write_text((play.folder / name).read_text() + more)
    environment = {
        name: os.environ[name]
        for name in ("PATH", "HOME", "LANG", "LOCKSTEP_TIER")
        if name in os.environ
    }
    with Box(CORES, MEMORY) as box:
        usage = box.run(
            ["./run_autograder"],
            cwd=root,
            env=environment | {"AUTOGRADER_ROOT": str(root)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=PLATFORM_SECONDS,
        )
    peak = f"{usage.peak / 2**20:.0f} MiB" if usage.peak else "not measured"
    row = [f"{usage.seconds:.1f}", peak]
    try:
        document = json.loads((root / "results" / "results.json").read_text())
        jsonschema.validate(document, json.loads(SCHEMA.read_text()))
    except (OSError, ValueError, jsonschema.ValidationError) as error:
        return f"no valid results.json: {str(error).splitlines()[0]}", ["–", *row, "–"], usage.held
    points, possible = (
        sum(test[key] for test in document["tests"]) for key in ("score", "max_score")
    )
    tier = document["extra_data"].get("confinement", {}).get("tier", "?")
    return (
        _complaint(play, usage, document["tests"], tier),
        [f"{points:g} of {possible:g}", *row, tier],
        usage.held,
    )


def _complaint(play: Play, usage: Usage, tests: list[dict], tier: str) -> str:
    if usage.code is None:
        return f"not ended in {PLATFORM_SECONDS} s: the platform would have written a score of 0"
    if usage.code:
        return f"exit code {usage.code}"
    if (
        wrong := {test["number"] for test in tests if test["score"] < test["max_score"]}
        ^ play.loses
    ):
        told = [
            f"{test['number']} {test['name']}: {' / '.join(test['output'].splitlines()[:4])}"
            for test in tests
            if test["number"] in wrong and test["score"] < test["max_score"]
        ]
        return "\n".join(
            [
                "wrong points: each of these problems lost points by mistake, or kept points that"
                f" it should lose: {', '.join(sorted(wrong))}",
                *told[:5],
            ]
        )
    if play.folder.name == "handout" and any(test["score"] for test in tests):
        return "a stub got points"
    return "ranks were not confined" if tier == "none" else ""


if __name__ == "__main__":
    sys.exit(main())
