"""A grader that is killed at any moment leaves a valid results.json, or none.

It leaves nothing else, apart from a hidden half-written file after SIGKILL. Several graders that
run at the same time do not disturb each other.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest

from grader.selftest.grading import ROOT, command
from grader.selftest.sampling import IS_WHOLE, count, rng_of_test
from grader.selftest.test_command import SCHEMA

pytestmark = pytest.mark.campaign

KILLS = count(first=1, sample=6, whole=100)
TOGETHER = [2, 8] if IS_WHOLE else [2]
FEW = ["--problem", "1.2", "--problem", "1.6"]
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


def start(folder: Path, *options: str, submission: str = "solutions") -> subprocess.Popen:
    """Start a grader whose temporary files are all in ``folder``."""
    (folder / "tmp").mkdir(parents=True)
    folder.chmod(0o755)
    (folder / "tmp").chmod(0o1777)
    called = command(submission, folder / "results.json", *options, TMPDIR=str(folder / "tmp"))
    return subprocess.Popen(**called, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def of_run(folder: Path) -> list[int]:
    """Return processes that have this folder in their arguments or in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        for name in ("cmdline", "environ"):
            try:
                if (
                    str(folder).encode() in (entry / name).read_bytes()
                    and int(entry.name) != os.getpid()
                ):
                    found.append(int(entry.name))
            except OSError:
                pass
    return found


def wait_until_gone(folder: Path, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and (of_run(folder) or os.listdir(folder / "tmp")):
        time.sleep(0.05)


@LINUX
@pytest.mark.parametrize("attempt", range(KILLS))
def test_killed_at_any_moment(tmp_path, attempt):
    rng = rng_of_test()
    after = rng.uniform(0.0, 6.0)
    number = rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    folder = tmp_path / "run"
    grader = start(folder, "--workers", "2", "--part", "collectives")
    time.sleep(after)
    grader.send_signal(number)
    _, complaint = grader.communicate(timeout=30)
    what = f"{number.name} after {after:.2f} s"
    wait_until_gone(folder)
    assert of_run(folder) == [], what
    assert os.listdir(folder / "tmp") == [], what
    # The workers may complain after SIGKILL, and Python itself may complain in its first moments.
    if number != signal.SIGKILL:
        assert "Traceback" not in complaint or str(ROOT) not in complaint, what
    left = os.listdir(folder)
    if number == signal.SIGKILL:  # no process removes the half-written file
        left = [name for name in left if not name.startswith(".results.json-")]
    assert sorted(left) in (["tmp"], ["results.json", "tmp"]), what
    if (folder / "results.json").exists():
        document = json.loads((folder / "results.json").read_text())
        jsonschema.validate(document, SCHEMA)
        assert sum(test["max_score"] for test in document["tests"]) == 20, what


@pytest.mark.long
@pytest.mark.parametrize("together", TOGETHER)
def test_several_at_once(tmp_path, together):
    graders = [start(tmp_path / str(number), "--workers", "1", *FEW) for number in range(together)]
    for number, grader in enumerate(graders):
        _, complaint = grader.communicate(timeout=300)
        assert grader.returncode == 0, complaint
        document = json.loads((tmp_path / str(number) / "results.json").read_text())
        assert [test["score"] for test in document["tests"]] == [
            test["max_score"] for test in document["tests"]
        ]
        assert os.listdir(tmp_path / str(number) / "tmp") == []


@pytest.mark.long
def test_when_its_time_is_over_it_ends_with_what_was_earned(tmp_path):
    """``barrier`` passes first; then ``ring_all_reduce`` sleeps."""
    submission = tmp_path / "submission"
    submission.mkdir()
    source = (ROOT / "solutions" / "collectives.py").read_text()
    sleepy = "\n\ndef ring_all_reduce(tensor):\n    import time\n\n    time.sleep(1000)\n"
    (submission / "collectives.py").write_text(source + sleepy)
    options = ["--problem", "1.2", "--problem", "1.7", "--seconds", "15", "--workers", "1"]
    grader = start(tmp_path / "run", *options, submission=str(submission))
    _, complaint = grader.communicate(timeout=120)
    assert grader.returncode == 0, complaint
    document = json.loads((tmp_path / "run" / "results.json").read_text())
    jsonschema.validate(document, SCHEMA)
    said = {
        number: [t["output"] for t in document["tests"] if t["number"] == number]
        for number in ("1.2", "1.7")
    }
    assert "Passed." in said["1.2"]
    over = ["one submission, 15 seconds, was already over" in text for text in said["1.7"]]
    assert not over[0] and all(over[1:])
