"""Starts `make watch` in a student's copy, saves files as an editor does, and reads what it prints."""

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

from grader.packaging import pack
from grader.selftest.grading import ROOT

SECONDS = 60  # for a line to come, on a busy machine
ENDED = r"^\d+ (public )?checks: "  # the line after the end of a run
STUB = '    raise NotImplementedError("Problem 1.6: shift_right")\n'
SOLUTION = (ROOT / "solutions" / "collectives.py").read_text()
RIGHT = SOLUTION.partition("    # BEGIN SOLUTION 1.6: shift_right\n")[2].partition("    # END")[0]
WRONG = RIGHT.replace("return received", "return received + 1")
DEADLOCK = """    received = tensor.new_empty(tensor.shape)
    dist.recv(received, src=(dist.get_rank() - 1) % dist.get_world_size())
    dist.send(tensor, dst=(dist.get_rank() + 1) % dist.get_world_size())
    return received
"""
NO_PYTHON = RIGHT.replace("if n == 1:", "if n == 1")
ENDLESS = "    while True:\n        pass\n"


def unpack_copy(folder: Path) -> Path:
    """Unpack a student's copy, with stubs, into this folder; return where it lies."""
    pack.write(pack.handout(), folder / "handout.zip")
    with zipfile.ZipFile(folder / "handout.zip") as archive:
        archive.extractall(folder)
    (folder / "tmp").mkdir()
    return folder / pack.FOLDER


def arguments(copy: Path, *options: str, **environment: str) -> dict:
    """Return the arguments with which ``subprocess`` runs `make watch` in a student's copy."""
    hidden = ("LOCKSTEP_", "PYTEST_", "PYTHONPATH")
    own = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return {
        "args": [sys.executable, "-m", "grader.watch", *options],
        "cwd": copy,
        "env": own | {"TMPDIR": str(copy.parent / "tmp")} | environment,
    }


class Watching:
    """A running `make watch` that prints lines."""

    def __init__(self, copy: Path, *options: str, **environment: str) -> None:
        self.copy = copy
        self.process = subprocess.Popen(
            **arguments(copy, "--lines", *options, **environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))

    def until(self, pattern: str) -> list[str]:
        """Return the lines up to one that matches."""
        seen = []
        deadline = time.monotonic() + SECONDS
        while not seen or not re.search(pattern, seen[-1]):
            try:
                seen.append(self.lines.get(timeout=deadline - time.monotonic()))
            except (queue.Empty, ValueError):
                raise AssertionError(
                    f"no line with {pattern!r} came:\n" + "\n".join(seen)
                ) from None
        return seen

    def save(self, body: str) -> None:
        """Write another body of shift_right, as an editor does that replaces the file."""
        stub = (ROOT / "handout" / "collectives.py").read_text()
        assert stub.count(STUB) == 1
        new = self.copy / "handout" / ".collectives.py.swp"
        new.write_text(stub.replace(STUB, body))
        new.replace(self.copy / "handout" / "collectives.py")

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=SECONDS)
