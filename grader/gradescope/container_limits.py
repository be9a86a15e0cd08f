"""Limits a command to a part of this machine, as a container does.

If this process can make control groups, they limit processor time and memory. Otherwise
``taskset`` limits the command to a single core. If there is no ``taskset``, nothing is limited. The
result says which limits were applied, because a rehearsal without a memory limit does not show
whether the memory is sufficient.
"""

import os
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from grader.wire.control_group import Group, own_name

GROUPS = Path("/sys/fs/cgroup")
PERIOD = 100_000  # microseconds over which the kernel counts processor time
END_SECONDS = 10.0  # for a command to clean up after SIGTERM


@dataclass
class Usage:
    """The time and memory that a command took."""

    code: int | None  # None if the command did not end in time
    seconds: float
    # bytes charged to the control group, pages of files included; None without a group
    peak: int | None
    held: str  # a text about the limits that were applied


class Box:
    """Limits commands to some cores and bytes: ``with Box(cores, bytes) as box: box.run(…)``."""

    def __init__(self, cores: float, memory: int) -> None:
        self.cores, self.memory = cores, memory
        self.group = Group((), "")

    @property
    def folders(self) -> list[Path]:
        return self.group.folders

    def __enter__(self) -> "Box":
        # the roots of control groups, version 2 and version 1
        for roots in ([GROUPS], [GROUPS / "cpu", GROUPS / "memory"]):
            if all((root / "cgroup.procs").exists() for root in roots):
                self.group = Group(roots, f"{own_name()}-{id(self)}")
                try:
                    self._make()
                    break
                except OSError:
                    self.__exit__()
        return self

    def _make(self) -> None:
        quota = int(PERIOD * self.cores)
        self.group.make()
        self.group.hold_memory(self.memory)
        if not self.group.set("cpu.max", f"{quota} {PERIOD}") and not self.group.set(
            "cpu.cfs_quota_us", quota
        ):
            raise FileNotFoundError("the group has no limit of processor time")

    def __exit__(self, *_: object) -> None:
        self.group.remove(seconds=5.0)
        self.group = Group((), "")

    def run(self, command: list[str], **options) -> Usage:
        """Run a command and its children within the limits, and return their time and memory.

        ``options`` are those of the function ``run`` of this module.
        """
        core = sorted(os.sched_getaffinity(0))[:1] if shutil.which("taskset") else []
        groups = [str(folder / "cgroup.procs") for folder in self.folders]

        # A shell joins the groups, and then replaces itself with the command. So no part of the
        # command runs outside the groups.
        joined = "".join(f'echo $$ > "{group}" && ' for group in groups) + 'exec "$@"'
        inside = ["/bin/sh", "-c", joined, "box", *command]
        if core and not groups:
            inside = ["taskset", "-c", str(core[0]), *command]
        began = time.monotonic()
        code = run(inside, **options)
        seconds = time.monotonic() - began
        file = self.group.file("memory.peak") or self.group.file("memory.max_usage_in_bytes")
        peak = int(file.read_text()) if file else None
        return Usage(code, seconds, peak, self.held(bool(groups), bool(core)))

    def held(self, groups: bool, core: bool) -> str:
        if groups:
            return (
                f"limited to {self.cores:g} CPU and {self.memory / 2**30:.2f} GiB"
                " by a control group"
            )
        return (
            "limited to one core" if core else "not limited"
        ) + ": no control group can be made here"


def run(command: list[str], timeout: float | None = None, **options) -> int | None:
    """Run a command. Return its exit code, or None if it has not ended after ``timeout`` seconds.

    If the time runs out, or an exception such as KeyboardInterrupt is raised, end the command and
    all its children. ``options`` are those of ``subprocess.Popen``.
    """
    with subprocess.Popen(command, start_new_session=True, **options) as process:
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.returncode is None:
                _end(process)


def _end(leader: subprocess.Popen) -> None:
    """End all processes of the process group of ``leader``."""
    for number, seconds in ((signal.SIGTERM, END_SECONDS), (signal.SIGKILL, 1.0)):
        deadline = time.monotonic() + seconds
        with suppress(ProcessLookupError):  # raised when the group has no process any more
            os.killpg(leader.pid, number)
            while time.monotonic() < deadline:
                leader.poll()
                os.killpg(leader.pid, 0)
                time.sleep(0.02)
