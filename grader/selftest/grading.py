"""Run the grader's command as an instructor does, and read what it wrote."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from grader.reports.plugin import SERVER

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Graded:
    code: int
    printed: str
    complaint: str
    document: dict

    @property
    def score(self) -> float:
        return sum(test["score"] for test in self.document["tests"])

    @property
    def possible(self) -> float:
        return sum(test["max_score"] for test in self.document["tests"])

    def lost(self) -> dict[str, dict]:
        """The tests without full score, by ``public …`` or ``hidden …`` and the name of the check."""
        tests = [test for test in self.document["tests"] if test["score"] < test["max_score"]]
        return {short(test["extra_data"]["check"]): test for test in tests}


def short(check: str) -> str:
    room = "hidden" if check.startswith("grader/hidden/") else "public"
    return f"{room} {check.partition('::')[2].removeprefix('test_')}"


def grade(submission: Path, results: Path, *options: str, server: str = "") -> Graded:
    """``python -m grader``, in an environment of its own; with the fork server at this address, where one is given."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("LOCKSTEP_", "PYTEST_", "COLUMNS"))}
    environment |= {SERVER: server} if server else {}
    command = [sys.executable, "-m", "grader", str(submission), "--results", str(results), "--workers", "1", *options]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    document = json.loads(results.read_text()) if results.exists() else {}
    return Graded(done.returncode, done.stdout, done.stderr, document)
