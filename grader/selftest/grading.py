"""Run the grader's command as an instructor does, and read what it wrote."""

import ctypes
import json
import os
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from grader.session import SERVER
from grader.world.fork_server_client import Server

ROOT = Path(__file__).resolve().parents[2]
WITHHELD = 19, 21  # CAP_SYS_PTRACE and CAP_SYS_ADMIN
PR_CAPBSET_DROP = 24


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


def command(
    submission: Path | str, results: Path, *options: str, server: str = "", **environment: str
) -> dict:
    """``python -m grader`` in an environment of its own, as arguments of ``subprocess``.

    With the fork server at this address, where one is given; ``environment`` is added.
    """
    own = {
        k: v for k, v in os.environ.items() if not k.startswith(("LOCKSTEP_", "PYTEST_", "COLUMNS"))
    }
    own |= {SERVER: server} if server else {}
    handed = [Server(server).door] if server else []
    line = [sys.executable, "-m", "grader", str(submission), "--results", str(results), *options]
    return {"args": line, "cwd": ROOT, "env": own | environment, "text": True, "pass_fds": handed}


def grade(
    submission: Path, results: Path, *options: str, server: str = "", seconds: float = 600
) -> Graded:
    """Run it to its end, with one worker. Raises TimeoutExpired where that takes longer."""
    called = command(submission, results, "--workers", "1", *options, server=server)
    done = subprocess.run(**called, capture_output=True, timeout=seconds)
    document = json.loads(results.read_text()) if results.exists() else {}
    return Graded(done.returncode, done.stdout, done.stderr, document)


def start_contained() -> Server:
    """A fork server as in a container, where even root gets no namespaces, nor a look into others'
    processes.
    """
    started = []

    def start() -> None:
        libc = ctypes.CDLL(None)
        header, sets = struct.pack("Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
        libc.capget(header, sets)
        # effective, permitted, inheritable; the low words first
        words = list(struct.unpack("6I", sets.raw))
        for capability in WITHHELD:
            words[:3] = [word & ~(1 << capability) for word in words[:3]]
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
        libc.capset(header, struct.pack("6I", *words))
        started.append(Server.start())

    # capabilities are a thread's own, and what it starts inherits them
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    return started[0]


def eventually(condition) -> None:
    for _ in range(600):
        if condition():
            return
        time.sleep(0.02)
    raise AssertionError("not within twelve seconds")
