"""A rehearsal that is interrupted ends what it has started, and leaves the packed zips alone."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from grader.selftest.grading import ROOT

SECONDS = 60  # on a busy machine
# The program, with a set-up that waits, and packs nothing else.
REHEARSAL = """
import sys
from pathlib import Path
from grader.gradescope import rehearse
rehearse.pack.autograder = lambda: {
    "setup.sh": b'#!/bin/sh\\nsleep 300 & echo $! > "$CHILD"; wait\\n', "run_autograder": b""
}
rehearse.ROOT = Path(sys.argv.pop(1))
rehearse._can_be_reached = lambda index: True
sys.exit(rehearse.main())
"""


def until(condition, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_an_interrupted_rehearsal_leaves_nothing_behind(tmp_path: Path):
    child, dist = tmp_path / "child", tmp_path / "dist"
    (tmp_path / "tmp").mkdir()
    dist.mkdir()
    (dist / "autograder.zip").write_text("packed for another course")
    process = subprocess.Popen(
        [sys.executable, "-c", REHEARSAL, str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"CHILD": str(child), "TMPDIR": str(tmp_path / "tmp")},
        stderr=subprocess.PIPE,
        text=True,
        # as in the background of a shell
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    try:
        until(lambda: child.exists() and child.read_text(), process)
        process.terminate()
        _, said = process.communicate(timeout=SECONDS)
        assert process.returncode == 2 and said == "cannot rehearse: interrupted\n"
        assert not os.path.exists(f"/proc/{child.read_text().strip()}")
        assert not os.listdir(tmp_path / "tmp")
        assert (dist / "autograder.zip").read_text() == "packed for another course"
    finally:
        process.kill()
        process.wait()
        if child.exists():
            subprocess.run(["kill", "-KILL", child.read_text().strip()], stderr=subprocess.DEVNULL)
