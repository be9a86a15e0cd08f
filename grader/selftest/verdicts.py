"""Compare the verdicts of two versions of the grader, before and after a change of structure.

    python -m grader.selftest.verdicts record before.json      grade everything that is here
    python -m grader.selftest.verdicts compare before.json after.json

``record`` grades the solutions, the stubs, the right submissions and the hostile cases, and runs
all checks on every mutant and variant, always with the same inputs. ``--only whole`` leaves out
mutants and variants, ``--only parts`` leaves out the others. ``compare`` lists the checks whose
points or status differ, and exits with 1 if there are any. A verdict that depends on a race, or on
the load of the machine, may differ without a change: repeat it alone.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from grader.selftest.grading import ROOT, Graded, grade, short, start_contained
from grader.selftest.hostile_case import Case
from grader.selftest.hostile_reader import CASES
from grader.selftest.hostile_workshop import Workshop
from grader.world.fork_server_client import Server

SEED = 20
AT_A_TIME = 2
MAX_SECONDS = 300  # for one grading
WHOLE, PARTS = "whole", "parts"

Verdicts = dict[str, dict[str, str]]  # submission → check → "failed 0/0.5"
Grading = Callable[[], dict[str, str]]


def read_verdicts(graded: Graded) -> dict[str, str]:
    """Return the verdict of every check of a grading."""
    verdicts = {
        short(test["extra_data"]["check"]): (
            f"{test['extra_data']['status']} {test['score']:g}/{test['max_score']:g}"
        )
        for test in graded.document.get("tests", [])
    }
    return verdicts | ({} if graded.code == 0 else {"the grader": f"exit code {graded.code}"})


def _grade(submission: Path, results: Path, options: list[str], server: Server) -> dict[str, str]:
    try:
        seeded = [*options, "--seed", str(SEED)]
        return read_verdicts(
            grade(submission, results, *seeded, server=server.address, seconds=MAX_SECONDS)
        )
    except subprocess.TimeoutExpired:
        return {"the grader": f"not done after {MAX_SECONDS} s"}


def _grade_right(folder: Path, server: Server) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as into:
        return _grade(folder, Path(into) / "results.json", [], server)


def _grade_hostile(case: Case) -> dict[str, str]:
    # A server of its own: an attack may end it.
    server = start_contained() if case.contained else Server.start()
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
            os.chmod(place, 0o755)
            workshop = Workshop(case, Path(place))
            return _grade(workshop.build(), workshop.results, case.options, server)
    finally:
        server.stop()


def whole_submissions(server: Server) -> Iterator[tuple[str, Grading]]:
    """Yield each submission that is graded by the command, and how."""
    right = sorted((ROOT / "grader" / "selftest" / "submissions").iterdir())
    for folder in (ROOT / "solutions", ROOT / "handout", *right):
        if folder.is_dir():
            yield str(folder.relative_to(ROOT)), partial(_grade_right, folder, server)
    for case in CASES:
        yield f"hostile {case.name}", partial(_grade_hostile, case)


def grade_whole() -> Verdicts:
    """Return the verdicts of all submissions that are graded by the command."""
    server = Server.start()
    try:
        with ThreadPoolExecutor(AT_A_TIME) as pool:
            running = {name: pool.submit(work) for name, work in whole_submissions(server)}
            return {name: future.result() for name, future in running.items()}
    finally:
        server.stop()


def try_parts() -> Verdicts:
    """Return the status of every check on every mutant and variant, as the mutation test runs them.

    Raises FileNotFoundError if the mutation test writes no report.
    """
    with tempfile.TemporaryDirectory() as folder:
        kinds = ("--kind", "mutant", "--kind", "variant", "--everything", "--seed", str(SEED))
        line = [sys.executable, "-m", "grader.selftest.mutation", *kinds, "--report", folder]
        subprocess.run(line, cwd=ROOT, stdout=subprocess.DEVNULL)  # exit code 1: a mutant survives
        trials = json.loads((Path(folder) / "mutation-test.json").read_text())["trials"]
    return {
        f"{trial['kind']} {trial['part']} {trial['name']}": {
            check: status for check, (status, _) in trial["outcomes"].items()
        }
        for trial in trials
    }


def differences(before: Verdicts, after: Verdicts) -> list[str]:
    """Return a line for each check of a submission whose verdict is not as it was."""
    found = []
    for name in sorted({*before, *after}):
        if name not in after or name not in before:
            found.append(f"{name}: only {'before' if name in before else 'after'}")
            continue
        old, new = before[name], after[name]
        for check in sorted({*old, *new}):
            if old.get(check) != new.get(check):
                was, now = old.get(check, "not there"), new.get(check, "not there")
                found.append(f"{name}: {check}: {was} → {now}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m grader.selftest.verdicts", description=__doc__.split("\n\n")[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record", help="grade everything, and write the verdicts")
    record.add_argument("into", type=Path)
    record.add_argument("--only", choices=(WHOLE, PARTS))
    compare = commands.add_parser("compare", help="list what differs between two records")
    compare.add_argument("before", type=Path)
    compare.add_argument("after", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "record":
        verdicts: Verdicts = {} if arguments.only == PARTS else grade_whole()
        verdicts |= {} if arguments.only == WHOLE else try_parts()
        arguments.into.write_text(json.dumps(verdicts, indent=1, ensure_ascii=False) + "\n")
        print(f"{len(verdicts)} submissions, {sum(map(len, verdicts.values()))} verdicts")
        return 0
    before, after = (json.loads(path.read_text()) for path in (arguments.before, arguments.after))
    found = differences(before, after)
    print(*found, sep="\n")
    print(f"{len({*before, *after})} submissions, {len(found)} verdicts differ")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
