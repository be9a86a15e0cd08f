"""Hold a command to a part of this machine, as a container does: control groups where root may make
them, else one core.

What could not be held is said: a rehearsal that was not held to its memory has not shown that it
keeps to it.
"""

import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from grader.wire.control_group import Group, own_name

GROUPS = Path("/sys/fs/cgroup")
PERIOD = 100_000  # microseconds


@dataclass
class Usage:
    """What a command took."""

    code: int | None  # None where its time ran out
    seconds: float
    peak: int | None  # bytes that the control group was charged with, pages of files included
    held: str  # in words


class Box:
    """``with Box(cores, bytes) as box: box.run(command)``."""

    def __init__(self, cores: float, memory: int) -> None:
        self.cores, self.memory = cores, memory
        self.group = Group((), "")

    @property
    def folders(self) -> list[Path]:
        return self.group.folders

    def __enter__(self) -> "Box":
        for roots in ([GROUPS], [GROUPS / "cpu", GROUPS / "memory"]):  # version 2, version 1
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
            raise FileNotFoundError("the group has no bound of processor time")

    def __exit__(self, *_: object) -> None:
        self.group.remove(seconds=5.0)
        self.group = Group((), "")

    def run(self, command: list[str], **options) -> Usage:
        """Run a command inside; its children are, too."""
        core = sorted(os.sched_getaffinity(0))[:1] if shutil.which("taskset") else []
        groups = [str(folder / "cgroup.procs") for folder in self.folders]

        # A shell joins the groups and becomes the command: nothing of it runs outside.
        joined = "".join(f'echo $$ > "{group}" && ' for group in groups) + 'exec "$@"'
        inside = ["/bin/sh", "-c", joined, "box", *command]
        if core and not groups:
            inside = ["taskset", "-c", str(core[0]), *command]
        began = time.monotonic()
        try:
            code = subprocess.run(inside, **options).returncode
        except subprocess.TimeoutExpired:
            code = None
        seconds = time.monotonic() - began
        file = self.group.file("memory.peak") or self.group.file("memory.max_usage_in_bytes")
        peak = int(file.read_text()) if file else None
        return Usage(code, seconds, peak, self.held(bool(groups), bool(core)))

    def held(self, groups: bool, core: bool) -> str:
        if groups:
            return (
                f"held to {self.cores:g} CPU and {self.memory / 2**30:.2f} GiB by a control group"
            )
        return (
            "held to one core" if core else "held to nothing"
        ) + ": no control group can be made here"
