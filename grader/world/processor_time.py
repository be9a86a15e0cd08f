"""How much processor time a rank has used, with all that it has started.

The system adds a child's time to its parent's, but only when the parent waits for it. A child whose
parent ignores it, or has died before it, would be counted nowhere: so what was seen of each process
is remembered.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from grader.wire import os_support

TICK = 1 / os.sysconf("SC_CLK_TCK")  # seconds


@dataclass(frozen=True)
class Process:
    """What the system says of a process; times are in seconds."""

    parent: int
    group: int
    began: int  # tells it from a later process of the same number
    own: float
    waited: float  # of its children that it has waited for


@dataclass
class Spending:
    """Of the ranks of a world, whose supervisor is their parent and adopts what loses its own."""

    # By the ranks' process numbers: what was seen of each process that came of a rank, by its
    # number and when it began; the seconds of the rank's own process; and the living processes that
    # it has started.
    seen: dict[int, dict[tuple[int, int], float]] = field(default_factory=lambda: defaultdict(dict))
    own: dict[int, float] = field(default_factory=dict)
    started: dict[int, set[int]] = field(default_factory=dict)

    def look(self, ranks: Iterable[int]) -> dict[int, float]:
        """Return pid → seconds for each of these ranks that can be seen."""
        processes = {rank: found for rank in ranks if (found := read(rank))}
        supervisors = {process.parent for process in processes.values()} - {1}
        for supervisor in supervisors:  # which adopts what has lost its parent
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
        return {rank: max(alive[rank], sum(self.seen[rank].values())) for rank in visible}

    def _owners(self, pid: int, processes: Mapping[int, Process], ranks: list[int]) -> list[int]:
        """The rank that a process comes from.

        All ranks, if it hides that: it has left its parent and its group.
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
    """Return the process's parent, group, start time and processor times; None if it has ended or
    the system does not show them.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        parent, group = int(fields[1]), int(fields[2])
        user, system, waited_user, waited_system = (int(ticks) * TICK for ticks in fields[11:15])
        return Process(parent, group, int(fields[19]), user + system, waited_user + waited_system)
    except (OSError, ValueError, IndexError):
        return None
