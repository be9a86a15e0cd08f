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

from grader.course_file import FILE
from grader.selftest.sampling import seed_of_test
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
        """Return the tests without full score.

        The key of each is ``public`` or ``hidden`` and the name of its check.
        """
        tests = [test for test in self.document["tests"] if test["score"] < test["max_score"]]
        return {short(test["extra_data"]["check"]): test for test in tests}


def short(check: str) -> str:
    room = "hidden" if check.startswith("grader/hidden/") else "public"
    return f"{room} {check.partition('::')[2].removeprefix('test_')}"


def command(
    submission: Path | str, results: Path, *options: str, server: str = "", **environment: str
) -> dict:
    """Return the arguments with which ``subprocess`` runs ``python -m grader``.

    The grader uses the fork server at the address ``server``, if one is given. Its environment is
    that of this process without the variables of the grader, of pytest and of the terminal's width,
    plus ``environment``. The course is the default. In a sample the checks' inputs depend on the
    sample's seed and on the test that runs now.
    """
    own = {
        k: v for k, v in os.environ.items() if not k.startswith(("LOCKSTEP_", "PYTEST_", "COLUMNS"))
    }
    own |= {FILE: os.devnull} | ({SERVER: server} if server else {})
    handed = [Server(server).door] if server else []
    seed = None if "--seed" in options else seed_of_test()
    drawn = [] if seed is None else ["--seed", str(seed)]
    called = [str(submission), "--results", str(results), *drawn, *options]
    line = [sys.executable, "-m", "grader", *called]
    return {"args": line, "cwd": ROOT, "env": own | environment, "text": True, "pass_fds": handed}


def grade(
    submission: Path, results: Path, *options: str, server: str = "", seconds: float = 600
) -> Graded:
    """Run the grader to its end, with one worker, and return what it printed and wrote.

    Raises TimeoutExpired if it takes longer than ``seconds``.
    """
    called = command(submission, results, "--workers", "1", *options, server=server)
    done = subprocess.run(**called, capture_output=True, timeout=seconds)
    document = json.loads(results.read_text()) if results.exists() else {}
    return Graded(done.returncode, done.stdout, done.stderr, document)


def start_contained() -> Server:
    """Start and return a fork server with the rights of one in a container.

    There even root gets no namespaces, and cannot look into the processes of others.
    """
    started = []

    def start() -> None:
        libc = ctypes.CDLL(None)
        # version 3 of the header, for this thread
        header, sets = struct.pack("Ii", 0x20080522, 0), ctypes.create_string_buffer(24)
        libc.capget(header, sets)
        # The words are effective, permitted and inheritable: the low words, then the high ones.
        words = list(struct.unpack("6I", sets.raw))
        for capability in WITHHELD:
            words[:3] = [word & ~(1 << capability) for word in words[:3]]
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
        libc.capset(header, struct.pack("6I", *words))
        started.append(Server.start())

    # Capabilities belong to a thread, and what it starts inherits them. So a separate thread gives
    # them up and starts the server.
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
