"""Grade with the oldest and the newest supported Python and torch.

    python -m grader.selftest.matrix [--all]

The command makes an environment for each pair, one after the other, with handout/set_up.py. It
grades the solutions, which must get all points, and the stubs, which must get none. Then it removes
the environment. Below the table, it says which pairs could not be tried on this machine, and why.
Without a GPU and PyTorch's index of builds for the CPU, each environment is a download of some
gigabytes.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from grader.assignment import POINTS as OF_PROBLEMS
from grader.selftest.grading import ROOT
from grader.version import TESTED_TORCH

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")
SECONDS = 1800  # for one set-up
POINTS = sum(OF_PROBLEMS.values())  # with those of extra credit
Pair = tuple[str, str]


@dataclass
class Outcome:
    """The outcome of the attempt with one Python and one torch.

    ``failure`` says why the pair could not be tried. ``scores`` are the points of the solutions and
    of the stubs.
    """

    setup_seconds: float = 0.0
    torch: str = ""
    scores: tuple[float, float] | None = None
    failure: str = ""

    @property
    def wrong(self) -> bool:
        return self.scores is not None and self.scores != (POINTS, 0)


def pythons() -> dict[str, str]:
    """Return the Pythons of this machine that can make environments, the oldest first.

    The result maps versions to paths.
    """
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    found = {}
    for version in PYTHONS:
        candidates = [
            shutil.which(f"python{version}"),
            *sorted(pyenv.glob(f"versions/{version}.*/bin/python{version}")),
        ]
        for candidate in filter(None, candidates):
            code = "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"
            done = subprocess.run([candidate, "-c", code], capture_output=True, text=True)
            if done.stdout.strip() == version:  # a shim may be there without its Python
                found[version] = str(candidate)
                break
    return found


def pairs(versions: list[str], everything: bool) -> list[Pair]:
    """Return the pairs of Python and torch to try.

    They are the oldest and the newest Python of this machine, each with the oldest and the newest
    torch. With ``everything``, they are all pairs.
    """
    chosen = versions if everything else sorted({versions[0], versions[-1]}, key=versions.index)
    return [(python, torch) for python in chosen for torch in TESTED_TORCH]


def attempt(python: str, torch: str) -> Outcome:
    """Make an environment with this Python and torch, grade in it, and remove it.

    Return the outcome.
    """
    folder = Path(tempfile.mkdtemp(prefix="lockstep-matrix-"))
    try:
        began = time.monotonic()
        environment = os.environ | {"VENV": str(folder / "environment"), "TORCH": torch}
        command = [python, str(ROOT / "handout" / "set_up.py")]
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=SECONDS
        )
        outcome = Outcome(setup_seconds=time.monotonic() - began)
        if done.returncode:
            outcome.failure = (
                f"could not be installed: {(done.stderr.strip() or done.stdout).splitlines()[-1]}"
            )
            return outcome
        outcome.torch = (folder / "environment" / ".ready").read_text().strip()
        solutions, stubs = (_grade(folder, room) for room in ("solutions", "handout"))
        outcome.scores = (solutions, stubs)
    except (subprocess.SubprocessError, OSError, ValueError) as error:
        outcome = Outcome(failure=f"could not be graded: {error}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome


def _grade(folder: Path, room: str) -> float:
    """Return the points of solutions/ or handout/."""
    python, results = folder / "environment" / "bin" / "python", folder / f"{room}.json"
    command = [python, "-m", "grader", room, "--results", results]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise ValueError(f"{room}: {done.stderr.strip()}")
    return sum(test["score"] for test in json.loads(results.read_text())["tests"])


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m grader.selftest.matrix", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="every Python that is here, not only the oldest and the newest",
    )
    arguments = parser.parse_args()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    here = pythons()
    if not here:
        print("no Python from 3.10 to 3.14 is here that can make environments", file=sys.stderr)
        return 2
    table = Table("Python", "torch", "set-up", "solutions", "stubs", "")
    outcomes = []
    for version, torch in pairs(list(here), arguments.all):
        console.print(f"Python {version}, torch {torch} …")
        outcome = attempt(here[version], torch)
        outcomes.append(outcome)
        scores = (
            [f"{score:g} of {POINTS:g}" for score in outcome.scores]
            if outcome.scores
            else ["–", "–"]
        )
        verdict = outcome.failure or ("wrong" if outcome.wrong else "as it should be")
        style = "red" if outcome.wrong else "yellow" if outcome.failure else ""
        table.add_row(
            version,
            outcome.torch or torch,
            f"{outcome.setup_seconds:.0f} s",
            *scores,
            verdict,
            style=style,
        )
    console.print(table)
    if missing := [version for version in PYTHONS if version not in here]:
        console.print(f"Not tried, as it is not on this machine: Python {', '.join(missing)}.")
    if not any(outcome.scores for outcome in outcomes):
        return 2
    return 1 if any(outcome.wrong for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
