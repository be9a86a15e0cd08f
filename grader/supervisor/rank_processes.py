"""Starts the ranks of a world, and measures the memory and the processor time of each rank."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict

from grader.hub.process_usage import MemoryUsage
from grader.rank.rank_home import RankHome
from grader.supervisor import mappings, process_memory, rank_users
from grader.supervisor.world_files import add_open, map_removed, written
from grader.wire import frames, os_support

Start = Callable[[list[int], RankHome], int]


class RankProcesses:
    """The ranks of a world. Each rank is started when a check needs it for the first time.

    For the hub, this object measures the ranks: see ``UsageSource``.
    """

    def __init__(self, start: Start, descriptors: list[list[int]], homes: list[RankHome]) -> None:
        self.start, self.waiting, self.homes = start, list(zip(descriptors, homes)), homes
        self.started: list[int] = []  # the pid of each rank that was started
        self.alive: dict[int, int] = {}  # pid → rank
        # pids of all ranks, and of other processes that ended and were reaped
        self.known_pids: set[int] = set()
        self.seen: set[int] = set()  # pids of ranks whose open files the system has shown

    def grow(self, size: int) -> None:
        """Start ranks until ``size`` ranks have been started."""
        while len(self.started) < size:
            own, home = self.waiting.pop(0)
            pid = self.start(own, home)
            self.alive[pid] = len(self.started)
            self.started.append(pid)
            self.known_pids.add(pid)
            for descriptor in own:
                os.close(descriptor)  # so that a rank's pipes close when it dies

    def memory(self, rank: int, with_mapped: bool) -> int:
        return self.resident(rank, with_mapped, with_peak=False).own

    def resident(self, rank: int, with_mapped: bool = True, with_peak: bool = True) -> MemoryUsage:
        """Return the memory of a rank, its processes and its files; zeros if it cannot be measured.

        ``own``, ``mapped`` and ``most`` are the fields of the result. ``own`` counts no pages of
        mapped files. But ``own`` and ``most`` count all bytes of the rank's own files, mapped or
        not. The mapped pages of these files are subtracted from ``mapped`` and ``most``. So nothing
        counts twice. A process that has lost its parent counts for every rank, because nobody can
        tell which rank has started it. If ``with_mapped`` is False, mapped memory counts only if
        the page tables show it: see ``mappings``. If ``with_peak`` is False, only ``own`` is
        correct.

        Raises:
            FrameError: the rank hides files, so what it sends is not accepted.
        """
        pid, files = self.started[rank], written(self.homes[rank].folder)
        if files.hidden:
            raise frames.FrameError(f"a frame of a rank that {files.hidden}")
        if files.keep_vanishing:
            raise frames.FrameError("a frame of a rank that renames or removes files all the time")
        found, others = process_memory.resident(pid), [
            other for other in self.started if other != pid
        ]
        if not found.own:
            return MemoryUsage()
        family = {pid, *os_support.family(os.getpid(), spare=others)}
        unseen = add_open(files, family, with_mapped)
        if pid not in unseen:
            self.seen.add(pid)
        elif pid in self.seen:
            raise frames.FrameError("a frame of a rank that hides its open files")
        beside = (
            sum(map(process_memory.memory, family - {pid})) + files.total_bytes() + files.queued()
        )
        if files.shared:
            beside += files.beyond(process_memory.shared_bytes(family))
        pages = 0
        if with_peak and files.total_bytes():
            with rank_users.reading_as(os.stat(f"/proc/{pid}").st_uid):
                pages = mappings.pages_of_files(pid, self.homes[rank].folder)
        return MemoryUsage(
            found.own + beside, max(0, found.mapped - pages), found.most - pages + beside
        )

    def process_memory(self, rank: int) -> int:
        return process_memory.memory(self.started[rank])

    def overwritten(self, rank: int) -> int | None:
        return process_memory.overwritten(self.started[rank])

    def processes(self, rank: int) -> list[int]:
        pid = self.started[rank]
        return [pid, *os_support.family(pid)] if os_support.LINUX else []

    def spent(self, rank: int) -> int:
        return os_support.processor_time(self.started[rank])

    def are_as_started(self) -> bool:
        """Return whether each rank has one thread, and there is no other process and no file.

        Shared memory that a rank maps counts as a file, and so does a mapped file that has lost its
        name. On GPUs, a rank may have more threads, and its mappings are not examined. If the
        system is not Linux, return False.
        """
        family = os_support.family(os.getpid())
        if self.homes[0].device == "cuda":
            family = dict.fromkeys(family, 1)  # a GPU's driver has threads of its own
        if not os_support.LINUX or family != dict.fromkeys(self.started, 1):
            return False
        for home in self.homes:
            with os.scandir(home.folder) as entries:
                if any(True for _ in entries):
                    return False
        return self.homes[0].device == "cuda" or not map_removed(family)


def fork_rank(descriptors: list[int], home: RankHome) -> int:
    """Fork a rank from this process, and return its pid.

    This process has imported torch and has one thread.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        from grader.rank import main as rank_main

        os_support.die_with_parent()
        wire, output, stacks = descriptors
        rank_main.live(wire, output, stacks, home)
    finally:
        os._exit(70)


def spawn_rank(descriptors: list[int], home: RankHome) -> int:
    """Start a rank in a fresh interpreter, and return its pid.

    This is slow, but works on every platform.
    """
    program = (
        f"import sys; sys.path.insert(0, {sys.path[0]!r}); from grader.rank import main,"
        " rank_home; "
    )
    program += f"main.live(*{descriptors!r}, rank_home.RankHome(**{asdict(home)!r}))"
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    return subprocess.Popen([sys.executable, "-I", "-c", program], close_fds=False).pid
