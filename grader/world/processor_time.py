"""Measures the processor time of a rank, together with all processes that it has started.

The system adds a child's time to its parent's time, but only when the parent waits for the child.
If the parent ignores the child, or dies first, the child's time is lost. So this module remembers
the processor time of each process that it has seen.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from grader.wire import os_support

TICK = 1 / os.sysconf("SC_CLK_TCK")  # seconds


@dataclass(frozen=True)
class Process:
    """The system's data on a process. Processor times are in seconds."""

    parent: int
    group: int
    began: int  # in clock ticks; a later process with the same pid has another value
    own: float  # processor time of the process itself
    waited: float  # processor time of the children that it has waited for


@dataclass
class Spending:
    """The processor time of the ranks of a world.

    The supervisor is the parent of the ranks. If a process that a rank has started loses its
    parent, the supervisor adopts this process.
    """

    # The keys of these dicts are the pids of ranks.

    # (pid, start) of each process that comes from the rank → its seconds at the last look
    seen: dict[int, dict[tuple[int, int], float]] = field(default_factory=lambda: defaultdict(dict))
    own: dict[int, float] = field(default_factory=dict)  # seconds of the rank's own process
    # pids of the living processes that the rank has started
    started: dict[int, set[int]] = field(default_factory=dict)

    supervisors: set[int] = field(default_factory=set)  # pids of the ranks' parents

    def look(self, ranks: Iterable[int]) -> dict[int, float]:
        """Return the processor seconds that each rank, with all its processes, has used.

        ``ranks`` and the keys of the result are the pids of ranks. The result leaves out ranks that
        the system does not show.
        """
        processes = {rank: found for rank in ranks if (found := read(rank))}
        self.supervisors = {process.parent for process in processes.values()} - {1}
        for supervisor in self.supervisors:  # it adopts processes that have lost their parent
            family = os_support.family(supervisor)
            processes |= {
                pid: found for pid in family if pid not in processes and (found := read(pid))
            }
        visible = [rank for rank in ranks if rank in processes]
        self.own = {rank: processes[rank].own for rank in visible}
        self.started = {rank: set() for rank in visible}
        alive = dict.fromkeys(visible, 0.0)
        for pid, process in processes.items():
            for rank in self._owners(pid, processes, visible):
                alive[rank] += process.own + process.waited
                self.seen[rank][pid, process.began] = process.own
                if pid != rank:
                    self.started[rank].add(pid)
        # Both sums may be too small. ``alive`` lacks ended processes that nobody waited for.
        # ``seen`` lacks the time that an ended process used after the last look at it.
        return {rank: max(alive[rank], sum(self.seen[rank].values())) for rank in visible}

    def _owners(self, pid: int, processes: Mapping[int, Process], ranks: list[int]) -> list[int]:
        """Return the pids of the ranks that may have started a process: one if the rank is known.

        If a process has left both its parent and its group, its rank cannot be found out. Then
        return the pids of all ranks.
        """
        ancestor = pid
        while ancestor in processes:
            if ancestor in ranks:
                return [ancestor]
            began = processes[ancestor].began
            if known := [rank for rank in ranks if (ancestor, began) in self.seen[rank]]:
                return known
            pid, ancestor = ancestor, processes[ancestor].parent
        group = processes[pid].group
        return [group] if group in ranks else ranks


def read(pid: int) -> Process | None:
    """Return the system's data on a process; None if it has ended or cannot be seen."""
    try:
        fields = os_support.read_bytes(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        parent, group = int(fields[1]), int(fields[2])
        user, system, waited_user, waited_system = (int(ticks) * TICK for ticks in fields[11:15])
        return Process(parent, group, int(fields[19]), user + system, waited_user + waited_system)
    except (OSError, ValueError, IndexError):
        return None
