"""Puts each world into a control group of its own, which limits the world's memory and threads.

The kernel enforces these limits all the time. The world's supervisor also measures what the ranks
use, but only from time to time.

To make control groups, this process must have the right to do so. Root has this right, except in
most containers. The supervisor enters the group before it starts a rank. So the ranks, and all
processes that the ranks start, are in the group from their beginning. To move a process into a
group later would take the kernel some milliseconds.

This module treats both versions of control groups alike. In version 2, a group is one folder with
the name of the group. In version 1, there may be several such folders, one for each controller.
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
# A group's name has four parts: the PID namespace, the PID and the start time of the process that
# made the group, and the world.
NAME = re.compile(r"lockstep-(\d+)-(\d+)-(\d+)(-\w+)?")
NEARLY = 0.97  # if a group has used more than this part of its limit, the limit counts as reached
REMOVAL_SECONDS = 1.0  # time for the processes in a group to end


class Group:
    """A control group: a folder called ``name`` in each of ``places``.

    The folders do not exist until ``make`` or ``enter`` is called.
    """

    def __init__(self, places: Iterable[Path], name: str) -> None:
        self.folders = [place / name for place in places]
        self.memory = self.tasks = 0  # the limits of memory, in bytes, and of the number of threads

    def make(self) -> None:
        for folder in self.folders:
            folder.mkdir()

    def enter(self) -> None:
        """Make the control group, and move this process into it.

        Raises OSError if the group cannot be made or entered.
        """
        self.make()
        for folder in self.folders:
            (folder / "cgroup.procs").write_text("0")  # 0 is the process that writes

    def hold(self, memory: int | None, tasks: int) -> None:
        """Limit the group's memory in bytes, swap included, and the number of its threads.

        A limit is never lowered, because the group may already use more than a lower limit allows.
        If ``memory`` is None, the limit of memory stays as it is.
        """
        if tasks > self.tasks:
            self.tasks = tasks
            self.set("pids.max", tasks)
        if memory and memory > self.memory:
            self.memory = memory
            self.hold_memory(memory)

    def hold_memory(self, memory: int) -> None:
        """Limit the group's memory in bytes, swap included if the kernel can count swap.

        Raises FileNotFoundError if the group has no file that sets a limit of memory.
        """
        # In version 1 this file limits memory and swap together. This limit may never be below the
        # limit of memory alone. So write this file both before and after the file that limits
        # memory alone. The first write is needed if the limits grow, the second one if they shrink.
        together = "memory.memsw.limit_in_bytes"
        with contextlib.suppress(OSError):
            self.set(together, memory)
        if not self.set("memory.limit_in_bytes", memory) and not self.set("memory.max", memory):
            raise FileNotFoundError("the control group has no file that sets a limit of memory")
        self.set(together, memory)
        self.set("memory.swap.max", 0)

    def set(self, name: str, value: int | str) -> bool:
        """Write a setting if it exists in the group. Return whether it exists."""
        if found := self.file(name):
            found.write_text(str(value))
        return found is not None

    def file(self, name: str) -> Path | None:
        return next((folder / name for folder in self.folders if (folder / name).exists()), None)

    def is_out_of_memory(self) -> bool:
        """Return whether the kernel has killed a process of the group because of the group's limit.

        The kernel may also kill a process because the whole machine has too little memory. Such a
        process does not count.
        """
        if not self.memory:
            return False
        if self._count("memory.events", "oom_kill") and self._count("memory.events", "oom"):
            return True
        # Version 1 does not say why the kernel killed a process, so look at the most memory used.
        most = self._count("memory.max_usage_in_bytes")
        return self._count("memory.oom_control", "oom_kill") > 0 and most > NEARLY * self.memory

    def is_out_of_tasks(self) -> bool:
        """Return whether the kernel refused a thread or process because of the group's limit.

        Older kernels also count refusals that come from the limit of a group further up. So look at
        the largest number of tasks that the group has had. If the kernel does not show it, look at
        the present number.
        """
        if not self._count("pids.events", "max"):
            return False
        most = self._count("pids.peak") or self._count("pids.current")
        return most >= NEARLY * self.tasks

    def _count(self, name: str, key: str = "") -> int:
        """Return the number after ``key`` in a file of the group; 0 if there is no such number.

        If ``key`` is not given, return the only number in the file.
        """
        with contextlib.suppress(OSError):
            if found := self.file(name):
                numbers = dict(line.rpartition(" ")[::2] for line in found.read_text().splitlines())
                return int(numbers.get(key, 0))
        return 0

    def remove(self, seconds: float = REMOVAL_SECONDS) -> bool:
        """Kill the processes in the group, and remove it. Return whether the group is gone.

        Give up after ``seconds``.
        """
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
    """Return the groups inside a group, innermost first.

    A grader that was killed may have left such groups.
    """
    return [path for path in sorted(folder.rglob("*"), reverse=True) if path.is_dir()]


def _kill(folder: Path) -> None:
    """Kill all processes of a group and of the groups inside it, except this process."""
    for group in (folder, *_below(folder)):
        with contextlib.suppress(OSError):
            for pid in map(int, (group / "cgroup.procs").read_text().split()):
                if pid > 1 and pid != os.getpid():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        (folder / "cgroup.kill").write_text("1")  # cgroup v2 kills a whole group


def find() -> tuple[tuple[Path, ...], str]:
    """Return the folders in which this process may make control groups, and a reason.

    There may be several folders, one for each controller. If there are none, the reason says why
    this process cannot make control groups. Otherwise the reason is empty.
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
            else ((), "no control group here limits the number of processes")
        )
    except OSError as error:
        return (), f"no control group can be made here: {error.strerror}"
    finally:
        trial.remove()


def _place(controller: str) -> Path | None:
    """Return the folder in which this process may make groups of a controller, or None."""
    for own in machine_limits.own_groups(controller):
        if not (own / "cgroup.procs").exists():
            continue  # this is no group, but a folder with several hierarchies
        given = own / "cgroup.subtree_control"
        if not given.exists():
            return own  # version 1
        # In version 2 a group that has processes gives no controllers to the groups inside it. But
        # a group further up may still give its controllers to the groups inside it.
        if not _has_controllers(given):
            with contextlib.suppress(OSError):
                given.write_text(" ".join(f"+{name}" for name in CONTROLLERS))
        if _has_controllers(given):
            return own
        if _text(own / "memory.max") not in ("", "max"):
            return None  # a world in a group further up would escape this limit
    return None


def _has_controllers(given: Path) -> bool:
    return set(CONTROLLERS) <= set(_text(given).split())


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def own_name() -> str:
    """Return the prefix of the names of this process's groups. No other process uses this prefix.

    From the prefix, other processes can also find out whether this process is still alive.
    """
    return f"lockstep-{_namespace()}-{os.getpid()}-{_start(os.getpid())}"


def clean_up(where: Iterable[Path]) -> None:
    """Remove the groups whose makers have ended, and kill all processes in these groups."""
    for place in where:
        with contextlib.suppress(OSError):
            for name in os.listdir(place):
                found = NAME.fullmatch(name)
                if found and found[1] == _namespace() and _start(int(found[2])) != found[3]:
                    Group([place], name).remove()


def _namespace() -> str:
    """Return the number of this process's PID namespace.

    In another namespace, the same PID belongs to another process.
    """
    return re.sub(r"\D", "", os.readlink("/proc/self/ns/pid"))


def _start(pid: int) -> str:
    """Return the start time of a process in clock ticks; empty if there is no such process."""
    return (_text(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split() + [""] * 20)[19]
