"""Hold a command to a part of this machine, as a container does: control groups where root may make them, else one core.

What could not be held is said: a rehearsal that was not held to its memory has not shown that it keeps to it.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

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
        self.folders: list[Path] = []
        self.files: dict[str, Path] = {}

    def __enter__(self) -> "Box":
        quota = int(PERIOD * self.cores)
        unified = [
            ("", "cpu.max", f"{quota} {PERIOD}"),
            ("", "memory.max", str(self.memory)),
            ("", "memory.swap.max", "0"),
        ]
        split = [("cpu", "cpu.cfs_quota_us", str(quota)), ("memory", "memory.limit_in_bytes", str(self.memory))]
        for way in (unified, split):
            try:
                self._make(way)
                break
            except OSError:
                self._remove()
        return self

    def _make(self, settings: list[tuple[str, str, str]]) -> None:
        roots = {controller: GROUPS / controller for controller, _, _ in settings}
        for controller, root in roots.items():
            if not (root / "cgroup.procs").exists():
                raise FileNotFoundError(root)
            self.folders.append(Path(tempfile.mkdtemp(prefix="lockstep-", dir=root)))
        made = dict(zip(roots, self.folders))
        for controller, name, value in settings:
            if "swap" in name and not (made[controller] / name).exists():
                continue
            (made[controller] / name).write_text(value)
        for name in ("memory.peak", "memory.max_usage_in_bytes"):
            for folder in self.folders:
                if (folder / name).exists():
                    self.files["peak"] = folder / name

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _remove(self) -> None:
        for folder in self.folders:
            for pid in (folder / "cgroup.procs").read_text().split() if folder.exists() else ():
                with contextlib.suppress(ProcessLookupError):  # left behind by a command that was stopped
                    os.kill(int(pid), signal.SIGKILL)
            for _ in range(50):
                try:
                    folder.rmdir()
                    break
                except FileNotFoundError:
                    break
                except OSError:  # somebody is still in it, or about to be gone
                    time.sleep(0.1)
        self.folders, self.files = [], {}

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
        peak = int(self.files["peak"].read_text()) if "peak" in self.files else None
        return Usage(code, seconds, peak, self.held(bool(groups), bool(core)))

    def held(self, groups: bool, core: bool) -> str:
        if groups:
            return f"held to {self.cores:g} CPU and {self.memory / 2**30:.2f} GiB by a control group"
        return ("held to one core" if core else "held to nothing") + ": no control group can be made here"
