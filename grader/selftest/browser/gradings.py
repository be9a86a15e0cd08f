"""Grades a submission, and prints its records and notes as JSON.

    python -m grader.selftest.browser.gradings FOLDER

The tests make pages from these records. ``python -m grader`` writes only results.json and the
finished page.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from grader.check.record import Record
from grader.selftest.grading import ROOT

SECONDS = 120
PROBLEMS = "1.2", "1.3", "1.4", "1.5", "1.6", "5.5"


def make_submission(folder: Path) -> None:
    """Write the solutions with mistakes of many kinds: values, a deadlock, an exception, a stub."""
    from grader.selftest.mutants import MUTANTS

    shutil.copytree(ROOT / "solutions", folder, ignore=shutil.ignore_patterns("__*"))
    for mutant in MUTANTS:
        if mutant.name in MISTAKES:
            file = folder / f"{mutant.part}.py"
            changed = file.read_text().replace(mutant.old, mutant.new)
            assert changed != file.read_text(), mutant.name
            file.write_text(changed)
    with (folder / "collectives.py").open("a") as file:
        file.write(APPENDED)


MISTAKES = (
    "an average that is a sum",
    "everybody sends first",
    "all activations are received at the beginning",
)
APPENDED = """

def overlapped_all_reduce(tensor, compute):
    raise NotImplementedError


def in_rank_order(action):
    print("an own line", "w" * 300)
    raise RuntimeError("own words <b>" + "x" * 300)
"""


def graded(folder: Path) -> tuple[list[Record], list[str]]:
    """Return the records and the notes of a submission, which a process of its own grades."""
    line = [sys.executable, "-m", "grader.selftest.browser.gradings", str(folder)]
    own = {k: v for k, v in os.environ.items() if not k.startswith(("LOCKSTEP_", "PYTEST_"))}
    done = subprocess.run(line, cwd=ROOT, env=own, capture_output=True, timeout=SECONDS)
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout)
    return [Record.read(record) for record in found["records"]], found["notes"]


def main(folder: Path) -> None:
    # These imports also load pytest, which must not notice the pytest that runs the tests.
    from grader.grade import Options, grade
    from grader.session import SessionOwner

    owner = SessionOwner(folder, 7, SECONDS)
    try:
        found = grade(owner, Options(problems=PROBLEMS, workers=2), time.monotonic())
    finally:
        owner.end()
    records = [record.as_dict() for record in found.records]
    json.dump({"records": records, "notes": found.notes()}, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
