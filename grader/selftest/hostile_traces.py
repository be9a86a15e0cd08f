"""Find from outside what a hostile submission has left behind or changed, and clean up.

A machine may be shared, and other gradings may run at the same time. So only what certainly belongs
to this case is removed: every attack puts a token into the names of what it makes, and the fork
server hands down a mark in the environment. A process that has neither also counts as a trace if a
rank's user owns it and it has lost its parent. But such a process is not killed.
"""

import ctypes
import hashlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from grader.selftest.grading import ROOT
from grader.supervisor.rank_users import UIDS
from grader.wire import removal

PLACES = (
    "/tmp",
    "/dev/shm",
    "/var/tmp",
    str(ROOT),
    str(ROOT / "tests"),
    str(ROOT / "grader" / "hidden"),
)
GUARDED = ("grader", "grader/hidden", "grader/reports", "solutions", "handout", "tests")
IPC_RMID = 0
PATIENCE = 1.5  # seconds for what is being ended to be gone


class Canaries:
    """Files that must not change."""

    def __init__(self, more: list[Path]) -> None:
        guarded = [path for room in GUARDED for path in sorted((ROOT / room).glob("*.py"))]
        self.files = [*guarded, ROOT / "setup.cfg", *more]
        self.before = self._look()

    def _look(self) -> dict[Path, str]:
        return {
            path: hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else ""
            for path in self.files
        }

    def touched(self) -> list[str]:
        after = self._look()
        return [
            f"{path.name} was changed" for path in self.files if self.before[path] != after[path]
        ]


class Traces:
    """What exists before a grading, to be compared with what exists after it."""

    def __init__(
        self, mark: str, token: str, key: int, temporary: Path, own: Callable[[], int | None]
    ) -> None:
        """Note what exists now. ``mark`` is in the server's environment.

        ``token`` and ``key`` name what this case makes. ``own`` returns the process id of the
        server's standby, if there is one: the standby is no trace.
        """
        self.words = (mark.encode(), token.encode())
        self.token, self.key, self.temporary, self.own = token, key, temporary, own
        self.before = set(processes())

    def left(self) -> list[str]:
        """Return sentences about all traces. Kill the marked processes, and remove the files."""
        deadline = time.monotonic() + PATIENCE
        while (alive := self._alive()) and time.monotonic() < deadline:
            time.sleep(0.02)
        found = [f"still alive: process {pid}, {command}" for (pid, _), command in alive.items()]
        for pid, _ in alive:
            if self._is_marked(pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
        return found + self._files() + self._segments() + self._queues()

    def _alive(self) -> dict[tuple[int, str], str]:
        new = [process for process in processes() if process not in self.before]
        theirs = {process: _command(process[0]) for process in new if self._is_theirs(process[0])}
        own = self.own() if theirs else None
        return {(pid, began): command for (pid, began), command in theirs.items() if pid != own}

    def _is_theirs(self, pid: int) -> bool:
        try:
            state, parent = (
                Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
            )
            orphan = parent == "1" and Path(f"/proc/{pid}").stat().st_uid in UIDS
        except OSError:
            return False
        # a dead process is no trace: its parent has yet to collect it
        return state != "Z" and (orphan or self._is_marked(pid))

    def _is_marked(self, pid: int) -> bool:
        try:
            texts = (
                Path(f"/proc/{pid}/cmdline").read_bytes()
                + Path(f"/proc/{pid}/environ").read_bytes()
            )
        except OSError:
            return False
        return any(word in texts for word in self.words)

    def _files(self) -> list[str]:
        found = [path for place in PLACES for path in Path(place).glob(f"*{self.token}*")]
        found += list(self.temporary.iterdir())
        for path in found:
            removal.remove(path)
        return [f"left behind: {path.name} in {path.parent.name}" for path in dict.fromkeys(found)]

    def _segments(self) -> list[str]:
        try:
            lines = [
                line.split() for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]
            ]
        except OSError:
            return []
        own = [int(line[1]) for line in lines if int(line[0]) & 0xFFFFFFFF == self.key]
        for identifier in own:
            ctypes.CDLL(None).shmctl(identifier, IPC_RMID, None)
        return ["left behind: a System V segment"] * bool(own)

    def _queues(self) -> list[str]:
        removed = ctypes.CDLL(None).mq_unlink(f"/{self.token}".encode()) == 0
        return ["left behind: a message queue"] * removed


def processes() -> list[tuple[int, str]]:
    """Return the pid and the start time of every process."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                # A process may have any bytes as its name.
                stat = Path(f"/proc/{entry}/stat").read_text(errors="replace")
                fields = stat.rpartition(")")[2].split()
            except OSError:
                continue
            found.append((int(entry), fields[19]))
    return found


def _command(pid: int) -> str:
    try:
        return (
            Path(f"/proc/{pid}/cmdline")
            .read_bytes()
            .replace(b"\0", b" ")
            .decode(errors="replace")[:200]
        )
    except OSError:
        return "gone by now"
