"""Finds out how many cores and how much memory this machine or container has for worlds.

Containers are control groups. In version 2, each group is one folder with a file for each limit. In
version 1, each group has a folder for each controller. The limits of this process are the lowest
limits of its group and of all groups above. A container may hide some folders of these groups.
"""

import math
import os
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")

# for the grader itself: the judges, the server with torch, and what all of these read from files
ENGINE_BYTES = 512 << 20
RANK_BYTES = 512 << 20  # for each rank, if the machine has enough memory
# for a world, even if memory is short. At 128 MiB, correct solutions of 5.3 and 6.2 were stopped
LEAST_BYTES = 256 << 20


def cores() -> int:
    """Return how many cores this process may use.

    This is the number of cores in the affinity mask of this process, but at most the container's
    quota of cores, rounded up.
    """
    count = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    quotas: list[Sequence[str]] = [line.split() for line in _read("cpu", "cpu.max")]
    quotas += zip(_read("cpu", "cpu.cfs_quota_us"), _read("cpu", "cpu.cfs_period_us"))
    for quota, period in quotas:
        if quota.isdigit():  # "max" and -1 mean that there is no quota
            count = min(count, math.ceil(int(quota) / int(period)))
    return max(1, count)


def memory() -> int:
    """Return how many bytes of memory all processes of this machine or container together may have.

    This is the lowest of the container's limits and the size of the machine's memory.
    """
    limits = [*_read("memory", "memory.max"), *_read("memory", "memory.limit_in_bytes")]
    if sys.platform != "win32":
        limits.append(str(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))
    return min(int(limit) for limit in limits if limit.isdigit())


def workers() -> int:
    """Return how many worlds may run at a time.

    The number is one more than the number of cores. So the cores stay busy while ranks wait for
    each other. On a single core, only one world may run. Fewer worlds may run if there is too
    little memory.
    """
    wanted = cores() + 1 if cores() > 1 else 1
    return max(1, min(wanted, (memory() - ENGINE_BYTES) // LEAST_BYTES))


@cache  # because it is called for each world, and the limits of a container do not change
def world_memory_limit(size: int) -> int:
    """Return the most bytes by which the memory of all ranks of a world together may grow."""
    return max(LEAST_BYTES, min(size * RANK_BYTES, (memory() - ENGINE_BYTES) // workers()))


def rank_memory_limit() -> int:
    """Return the most bytes by which the memory of a single rank may grow."""
    return world_memory_limit(1)


def own_groups(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control group and the groups above it, innermost first.

    Some of these folders may not be visible to this process.
    """
    try:
        lines = OWN.read_text().splitlines()
    except OSError:
        return  # not on Linux
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller not in controllers.split(",") and controllers:
            continue
        root = GROUPS / controllers if controllers else GROUPS
        below = Path(path.lstrip("/"))
        for group in [below, *below.parents]:
            yield root / group


def _read(controller: str, name: str) -> Iterator[str]:
    """Yield the content of the file ``name`` in each folder of ``own_groups(controller)``.

    Folders that lack this file, or that are not visible to this process, are left out.
    """
    for group in own_groups(controller):
        try:
            yield (group / name).read_text().strip()
        except (OSError, ValueError):
            continue  # the group has no such file, or its folder is not visible here
