"""A control group for each world: the kernel holds what the world takes together, also between two
looks of its supervisor.

Where this process may make one, that is as root, outside of most containers. The supervisor enters
it before it starts a rank, so that ranks and all that they start are born inside. To enter takes
the kernel some milliseconds, to be born inside takes nothing. Groups of both versions of control
groups look alike from here: a folder of each name, in one place, or in one for each controller.
"""

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from grader.wire import machine_limits

CONTROLLERS = ("memory", "pids")
# namespace of process numbers, process, its start, world
NAME = re.compile(r"lockstep-(\d+)-(\d+)-(\d+)(-\w+)?")
NEARLY = 0.97  # of a bound has been used where something more did not fit
REMOVAL_SECONDS = 1.0  # for what is in a group to end


class Group:
    """A group of this name in each of these places. No more than a name until somebody makes it."""

    def __init__(self, places: Iterable[Path], name: str) -> None:
        self.folders = [place / name for place in places]
        self.memory = self.tasks = 0  # what it may have

    def make(self) -> None:
        for folder in self.folders:
            folder.mkdir()

    def enter(self) -> None:
        """Make the group, and move this process into it.

        Raises OSError where that is not possible.
        """
        self.make()
        for folder in self.folders:
            (folder / "cgroup.procs").write_text("0")

    def hold(self, memory: int | None, tasks: int) -> None:
        """Bound the group's bytes, swap included, and its threads.

        Never to less than before: that may be in use.
        """
        if tasks > self.tasks:
            self.tasks = tasks
            self.set("pids.max", tasks)
        if memory and memory > self.memory:
            self.memory = memory
            self.hold_memory(memory)

    def hold_memory(self, memory: int) -> None:
        """Bound the group's bytes, swap included where the kernel can."""
        # memory and swap, in version 1: never less than the memory alone
        together = "memory.memsw.limit_in_bytes"
        with contextlib.suppress(OSError):
            self.set(together, memory)
        if not self.set("memory.limit_in_bytes", memory) and not self.set("memory.max", memory):
            raise FileNotFoundError("the group has no bound of memory")
        self.set(together, memory)
        self.set("memory.swap.max", 0)

    def set(self, name: str, value: int | str) -> bool:
        """Write a setting, and return whether the group has it."""
        if found := self.file(name):
            found.write_text(str(value))
        return found is not None

    def file(self, name: str) -> Path | None:
        return next((folder / name for folder in self.folders if (folder / name).exists()), None)

    def is_out_of_memory(self) -> bool:
        """Return whether the kernel has ended a process of the group because of the group's own
        bound, not of the machine's.
        """
        if not self.memory:
            return False
        if self._count("memory.events", "oom_kill") and self._count("memory.events", "oom"):
            return True
        most = self._count("memory.max_usage_in_bytes")  # version 1 does not tell why
        return self._count("memory.oom_control", "oom_kill") > 0 and most > NEARLY * self.memory

    def is_out_of_tasks(self) -> bool:
        """Return whether the kernel has refused a process or a thread because of the group's own
        bound.
        """
        return self._count("pids.events", "max") > 0

    def _count(self, name: str, key: str = "") -> int:
        """The number after this word of a file, or the file's only one; 0 where there is none."""
        with contextlib.suppress(OSError):
            if found := self.file(name):
                numbers = dict(line.rpartition(" ")[::2] for line in found.read_text().splitlines())
                return int(numbers.get(key, 0))
        return 0

    def remove(self, seconds: float = REMOVAL_SECONDS) -> bool:
        """Remove the group, and end what is still in it; return whether it is gone."""
        deadline = time.monotonic() + seconds
        left = list(self.folders)
        while True:
            left = [folder for folder in left if not _is_removed(folder)]
            if not left or time.monotonic() > deadline:
                return not left
            for folder in left:
                _kill(folder)
            time.sleep(0.002)


def _is_removed(folder: Path) -> bool:
    with contextlib.suppress(OSError):
        for below in _below(folder):
            below.rmdir()
        folder.rmdir()
    return not folder.exists()


def _below(folder: Path) -> list[Path]:
    """The groups in a group, innermost first: a grader that was killed may have made some."""
    return [path for path in sorted(folder.rglob("*"), reverse=True) if path.is_dir()]


def _kill(folder: Path) -> None:
    """Kill all processes of a group, and of those in it."""
    for group in (folder, *_below(folder)):
        with contextlib.suppress(OSError):
            for pid in map(int, (group / "cgroup.procs").read_text().split()):
                if pid > 1 and pid != os.getpid():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        (folder / "cgroup.kill").write_text("1")  # in version 2, all at once


def find() -> tuple[tuple[Path, ...], str]:
    """Return where this process may make groups: one folder, or one for each controller; and why
    not, where it may not.
    """
    if os.environ.get("LOCKSTEP_GROUPS") == "none":
        return (), "LOCKSTEP_GROUPS=none asks for no control group"
    found = [_place(controller) for controller in CONTROLLERS]
    places = tuple(dict.fromkeys(place for place in found if place))
    if None in found:
        return (), "no control group can be made here"
    trial = Group(places, f"{own_name()}-0")
    try:
        trial.make()
        trial.hold(1 << 30, 100)
        return (
            (places, "")
            if trial.file("pids.max")
            else ((), "no control group here counts processes")
        )
    except OSError as error:
        return (), f"no control group can be made here: {error.strerror}"
    finally:
        trial.remove()


def _place(controller: str) -> Path | None:
    for own in machine_limits.own_groups(controller):
        if not (own / "cgroup.procs").exists():
            continue  # no group, but a folder of several hierarchies
        given = own / "cgroup.subtree_control"
        if not given.exists():
            return own  # version 1
        # In version 2 a group that has processes gives no controllers to groups below it, but one
        # above it may.
        if not _has_controllers(given):
            with contextlib.suppress(OSError):
                given.write_text(" ".join(f"+{name}" for name in CONTROLLERS))
        if _has_controllers(given):
            return own
        if _text(own / "memory.max") not in ("", "max"):
            return None  # beside this group, a world would not be held to that
    return None


def _has_controllers(given: Path) -> bool:
    return set(CONTROLLERS) <= set(_text(given).split())


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def own_name() -> str:
    """Return a name that no other process has for its groups, and that tells whether the process is
    still alive.
    """
    return f"lockstep-{_namespace()}-{os.getpid()}-{_start(os.getpid())}"


def clean_up(where: Iterable[Path]) -> None:
    """Remove the groups of processes that are gone, with what is still in them."""
    for place in where:
        with contextlib.suppress(OSError):
            for name in os.listdir(place):
                found = NAME.fullmatch(name)
                if found and found[1] == _namespace() and _start(int(found[2])) != found[3]:
                    Group([place], name).remove()


def _namespace() -> str:
    """The number of this process's namespace: in another one, the same process number is of another
    process.
    """
    return re.sub(r"\D", "", os.readlink("/proc/self/ns/pid"))


def _start(pid: int) -> str:
    """When a process was started, in clock ticks; nothing where there is none."""
    return (_text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split() + [""] * 20)[19]
