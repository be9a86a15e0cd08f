"""What this machine, or the container that we run in, lets us have; and how much of it a world
gets.

Containers are control groups: in the second version one file tells each limit, in the first one a
folder for each controller. A process's own group may lie below the folder that can be seen, or be
that folder: the tightest limit on the way down counts.
"""

import math
import os
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")

# for the grader itself: the judges, the server with torch in it, and what all read from files
ENGINE_BYTES = 512 << 20
WORLD_BYTES = 512 << 20  # for each rank, where there is plenty
LEAST_BYTES = 128 << 20  # for a world, however little there is: honest ones need half of it


def cores() -> int:
    """Cores that this process may really use: its affinity, cut to the container's quota."""
    count = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    quotas: list[Sequence[str]] = [line.split() for line in _read("cpu", "cpu.max")]
    quotas += zip(_read("cpu", "cpu.cfs_quota_us"), _read("cpu", "cpu.cfs_period_us"))
    for quota, period in quotas:
        if quota.isdigit():  # not "max", nor -1
            count = min(count, math.ceil(int(quota) / int(period)))
    return max(1, count)


def memory() -> int:
    """Bytes that all processes here may have together."""
    limits = [*_read("memory", "memory.max"), *_read("memory", "memory.limit_in_bytes")]
    if sys.platform != "win32":
        limits.append(str(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))
    return min(int(limit) for limit in limits if limit.isdigit())


def workers() -> int:
    """Worlds at a time.

    Ranks wait for each other now and then: one more than there are cores keeps the cores busy.
    """
    wanted = cores() + 1 if cores() > 1 else 1
    return max(1, min(wanted, (memory() - ENGINE_BYTES) // LEAST_BYTES))


@cache  # asked for each world, and a container does not change
def world_memory_limit(size: int) -> int:
    """Bytes that the ranks of a world may have together, beyond what they begin with."""
    return max(LEAST_BYTES, min(size * WORLD_BYTES, (memory() - ENGINE_BYTES) // workers()))


def rank_memory_limit() -> int:
    """Bytes that one rank may have beyond what it begins with."""
    return world_memory_limit(1)


def own_groups(controller: str) -> Iterator[Path]:
    """Where this process's control group and those above it would be seen, the tightest first."""
    try:
        lines = OWN.read_text().splitlines()
    except OSError:
        return  # no Linux
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller not in controllers.split(",") and controllers:
            continue
        root = GROUPS / controllers if controllers else GROUPS
        below = Path(path.lstrip("/"))
        for group in [below, *below.parents]:
            yield root / group


def _read(controller: str, name: str) -> Iterator[str]:
    """What a file says in these groups, as far as they can be seen."""
    for group in own_groups(controller):
        try:
            yield (group / name).read_text().strip()
        except (OSError, ValueError):
            continue  # outside of what this container sees
