"""Grade one submission in a platform's container, and write the result in the platform's format.

    python -m grader.platforms autolab SUBMISSION        prints the feedback and the autoresult
    python -m grader.platforms prairielearn GRADE        GRADE/student → GRADE/results/results.json
    python -m grader.platforms github SUBMISSION         prints annotations, adds a step summary
    python -m grader.platforms harbor SUBMISSION LOGS    writes LOGS/reward.txt
    python -m grader.platforms plain SUBMISSION INTO     writes results.json, junit.xml, report.html

The grader runs as a separate process, which rewrites its results as checks finish. If the grader
fails or is killed, the finished checks still give their points. If there are no results, no score
is written, and the exit code is not 0. Then the platform reports a failure, and no student gets 0
points by mistake.

LOCKSTEP_SECONDS is the time limit for all checks together (default: 480). If LOCKSTEP_CONFINED is
"no", the program grades even if student code cannot be confined. This is the default only for
github and plain.
"""

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from grader.assignment import PARTS
from grader.atomic_write import written_whole
from grader.check.record import FAILED
from grader.course_file import course
from grader.diagnosis.finding import printable
from grader.platforms import autolab, formats, github, prairielearn
from grader.reports import results_json

ROOT = Path(__file__).resolve().parents[2]
DEFAULT_SECONDS = 480.0
START_AND_END_SECONDS = 90.0  # seconds for the start and the end of the grader, besides the checks
STOPPED = (
    "The autograder itself failed: tell your instructor. Checks that it could not run give 0"
    " points."
)


@dataclass(frozen=True)
class GradingOutcome:
    """The results and the exit code of a grading. If there are no results, ``document`` is {}."""

    document: dict
    code: int


@dataclass(frozen=True)
class Grading:
    """Options of a grading.

    If ``shows`` is True, the grader prints its report. The report includes the hidden checks.
    """

    part: str = ""
    confined: bool = True
    shows: bool = False
    report: Path | None = None

    def run(self, submission: Path) -> GradingOutcome:
        with tempfile.TemporaryDirectory(prefix="lockstep-results-") as folder:
            results, complaint = Path(folder) / "results.json", Path(folder) / "stderr"
            with open(complaint, "wb") as stderr:
                code = self._run(submission, results, stderr)
            # Students can see the output of this program. Only the first line of the grader's error
            # output is printed, because the other lines can quote hidden checks.
            if said := complaint.read_text(errors="replace").splitlines():
                print(printable(said[0]), flush=True)
            try:
                document = json.loads(results.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                return GradingOutcome({}, code or 1)
        if code:
            document["output"] = f"{STOPPED}\n{document['output']}".strip()
        return GradingOutcome(document, code)

    def _run(self, submission: Path, results: Path, complaint: BinaryIO) -> int:
        seconds = _seconds()
        command = [sys.executable, "-m", "grader", str(submission), "--results", str(results)]
        command += ["--seconds", f"{seconds:g}", *([f"--part={self.part}"] if self.part else [])]
        command += [f"--report={self.report}"] if self.report else []
        if os.environ.get("LOCKSTEP_CONFINED", "yes" if self.confined else "no") != "no":
            command.append("--official")
        output: dict = {} if self.shows else {"stdout": subprocess.DEVNULL, "stderr": complaint}
        grader = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.DEVNULL, **output)
        try:
            return grader.wait(seconds + START_AND_END_SECONDS)
        except subprocess.TimeoutExpired:
            grader.terminate()  # the grader cleans up, and its fork server ends all ranks
        try:
            return grader.wait(START_AND_END_SECONDS) or 1
        except subprocess.TimeoutExpired:
            grader.kill()
            return grader.wait()


def _seconds() -> float:
    try:
        return float(os.environ.get("LOCKSTEP_SECONDS") or DEFAULT_SECONDS)
    except ValueError:
        return DEFAULT_SECONDS


def grade_for_autolab(submission: Path) -> int:
    """Print the feedback, and then the scores. If there are no results, print ``STOPPED`` instead.

    Autolab reads both stdout and stderr.
    """
    outcome = Grading().run(submission)
    if not outcome.document:
        print(STOPPED, flush=True)
        return outcome.code
    print(autolab.text(outcome.document), end="", flush=True)
    return 0  # if the exit code were not 0, make would print a line after the scores


def grade_for_prairielearn(grade: Path) -> int:
    student, target = grade / "student", grade / "results" / "results.json"
    target.parent.mkdir(exist_ok=True)
    target.parent.chmod(0o700)  # ranks may run as other users
    target.unlink(missing_ok=True)
    if not any((student / name).is_file() for name in course().files):
        _write(target, prairielearn.not_gradable())
        return 0
    outcome = Grading().run(student)
    if outcome.document:
        _write(target, prairielearn.text(outcome.document))
    return 0 if outcome.document else outcome.code


def grade_for_github(submission: Path) -> int:
    """Print the report and the annotations, and add a summary if GitHub names a file for it.

    If the grader's exit code is not 0, return this exit code. Otherwise return 1 if a check failed,
    and 0 if no check failed. A function that is still a stub does not count as failed.

    The report contains text of the submission. This text could look like a workflow command. So
    GitHub gets the instruction to ignore commands while the report is printed.
    """
    token = secrets.token_hex(16)
    print(f"::stop-commands::{token}", flush=True)
    outcome = Grading(confined=False, shows=True).run(submission)
    print(f"\n::{token}::", flush=True)
    if not outcome.document:
        return outcome.code
    print(github.annotations(outcome.document), end="", flush=True)
    if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
        with open(summary, "a", encoding="utf-8") as file:
            file.write(github.summary(outcome.document))
    failed = any(t["extra_data"]["status"] == FAILED for t in outcome.document["tests"])
    return outcome.code or int(failed)


def grade_for_harbor(submission: Path, logs: Path, part: str) -> int:
    """Write reward.txt and results.json into the folder ``logs``."""
    reward = logs / "reward.txt"
    logs.mkdir(parents=True, exist_ok=True)
    reward.unlink(missing_ok=True)
    submission.mkdir(parents=True, exist_ok=True)  # if the agent left no files, the reward is 0
    outcome = Grading(part, shows=True).run(submission)
    if not outcome.document:
        return outcome.code
    results_json.write(logs / "results.json", outcome.document)
    _write(reward, formats.reward(outcome.document))
    return 0


def grade_plainly(submission: Path, into: Path, part: str) -> int:
    """Remove the results of an earlier submission, and write the new results, if there are any."""
    into.mkdir(parents=True, exist_ok=True)
    results, junit, report = (into / name for name in ("results.json", "junit.xml", "report.html"))
    for old in (results, junit, report):
        old.unlink(missing_ok=True)
    outcome = Grading(part, confined=False, shows=True, report=report).run(submission)
    if outcome.document:
        results_json.write(results, outcome.document)
        formats.write([("junit", junit)], outcome.document)
    return outcome.code


def _write(path: Path, text: str) -> None:
    with written_whole(path) as file:
        file.write(text.encode())


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m grader.platforms",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "platform", choices=["autolab", "prairielearn", "github", "harbor", "plain"]
    )
    parser.add_argument("submission", type=Path)
    parser.add_argument("into", type=Path, nargs="?", help="harbor and plain: where to write")
    parser.add_argument(
        "--part", choices=list(PARTS), default="", help="harbor and plain: grade only this part"
    )
    arguments = parser.parse_args()
    if arguments.platform in ("harbor", "plain") and not arguments.into:
        parser.error(f"{arguments.platform} needs a folder to write into")
    submission = arguments.submission.resolve()  # the grader runs in ROOT
    try:
        if arguments.platform == "autolab":
            return grade_for_autolab(submission)
        if arguments.platform == "prairielearn":
            return grade_for_prairielearn(submission)
        if arguments.platform == "github":
            return grade_for_github(submission)
        grade = grade_for_harbor if arguments.platform == "harbor" else grade_plainly
        return grade(submission, arguments.into.resolve(), arguments.part)
    except OSError as error:
        print(f"cannot grade: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("cannot grade: interrupted", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
