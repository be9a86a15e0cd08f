"""Grades one upload on Gradescope. run_autograder runs this module.

This module runs the grader, then adapts the results to the platform and to the course. The
platform's folders are under ``/autograder``, or under ``AUTOGRADER_ROOT`` if that is set. If
submission_metadata.json has an error, the instructor gets a note, and the upload is still graded.
The course file was checked when the zip was packed. If the course file cannot be read here, nothing
is graded, and the platform tells the instructor that the autograder failed.
"""

import json
import os
import subprocess
import sys
import traceback
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path

from grader.course_file import BadCourse, Course, course
from grader.gradescope.late import deduction
from grader.gradescope.metadata import Upload
from grader.gradescope.rate_limit import Decision, decide
from grader.reports import results_json

HERE = Path(__file__).resolve().parents[2]
STOPPED = (
    "The autograder itself failed: tell your instructor. Checks that it could not run give 0"
    " points."
)


def main() -> int:
    root = Path(os.environ.get("AUTOGRADER_ROOT", "/autograder"))
    target = root / "results" / "results.json"
    try:
        rules = course()
    except BadCourse as error:
        _tell(f"cannot grade: {error}")
        return 2
    upload = Upload.read(root / "submission_metadata.json")
    for complaint in upload.complaints:
        _tell(complaint)
    target.parent.mkdir(parents=True, exist_ok=True)
    with suppress(OSError):
        target.unlink()  # if the grader fails now, old results must not be used
    _hide(root)
    decision = Decision()
    try:
        decision = decide(rules.limit, upload, _now())
        if decision.instead:
            results_json.write(target, decision.instead)
            return 0
    except Exception:  # a student must not lose the grade because of our mistake
        _tell(
            "The rate limit could not be applied, so this upload is graded.\n"
            f"{traceback.format_exc()}"
        )
    if decision.note:
        _tell(decision.note)
    code = _grade(root, target, rules)
    try:
        document = json.loads(target.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # The grader has written no result. The platform then tells the instructor that the
        # autograder failed.
        return code or 1
    try:
        fitted = fit(document, rules, upload)
        if code:
            fitted["output"] = f"{STOPPED}\n{fitted['output']}".strip()
        decision.remember(fitted, graded=code == 0)
        results_json.write(target, fitted)
    except Exception:  # keep the grader's results as they are
        _tell(
            "The rules of course.toml could not be applied, so the results are those of the grader"
            f" without these rules.\n{traceback.format_exc()}"
        )
    return code


def _hide(root: Path) -> None:
    """Let only the owner of the files read the metadata, the results and the submission."""
    for name in ("submission_metadata.json", "results", "submission"):
        with suppress(OSError):
            path = root / name
            path.chmod(0o700 if path.is_dir() else 0o600)


def _now() -> datetime:
    return datetime.now(timezone.utc)


def _tell(instructor: str) -> None:
    """Print a note for the instructor. Students do not see the standard output."""
    # A complaint can quote any character, so all characters except ASCII are escaped.
    print(instructor.encode("ascii", "backslashreplace").decode(), flush=True)


def _grade(root: Path, target: Path, rules: Course) -> int:
    command = [sys.executable, "-m", "grader", str(root / "submission"), "--results", str(target)]
    command += ["--seconds", f"{rules.gradescope.seconds:g}"]
    if rules.gradescope.confined:
        command.append("--official")
    return subprocess.run(command, cwd=HERE, stdin=subprocess.DEVNULL).returncode


def fit(document: dict, rules: Course, upload: Upload) -> dict:
    """Apply the rules of the course to the grader's results, and return the results."""
    for test in document["tests"]:
        if test["visibility"] != "visible" and not test["extra_data"]["visibility_written"]:
            test["visibility"] = rules.gradescope.hidden_checks
    points, _ = results_json.points_of(document)
    taken, note = deduction(rules.late, upload)
    if taken:
        document["score"] = round(points * (1 - taken / 100), 3)
        document["output"] = f"{note}\n{document['output']}".strip()
    if rules.gradescope.leaderboard:
        value = document.get("score", round(points, 3))
        document["leaderboard"] = [{"name": "Points", "value": value, "order": "desc"}]
    return document


if __name__ == "__main__":
    sys.exit(main())
