"""Describe the hardware of a benchmark: device, cores, memory. Given, not graded."""

import contextlib
import math
import os
import platform
import re
import shutil
import socket
import subprocess
from collections import Counter
from pathlib import Path

import torch
import torch.distributed as dist

from handout.bandwidth import gpu
from handout.launcher import cores, device

OWN_GROUPS, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")  # control groups of Linux


def cores_text(number: int) -> str:
    return "1 core" if number == 1 else f"{number} cores"


def hardware() -> dict:
    """Return this rank's machine, device, number of cores, and ``available()`` memory in bytes."""
    if gpu.in_use():
        model = torch.cuda.get_device_name()
    else:
        listed, model = Path("/proc/cpuinfo"), platform.processor() or platform.machine()
        if listed.exists() and (named := re.search(r"model name\s*: (.+)", listed.read_text())):
            model = named[1]
    return {
        "machine": socket.gethostname(),
        "device": model,
        "cores": cores(),
        "memory": available(),
    }


def available() -> float:
    """Return how many bytes of memory this rank may use: 90 % of its share of the free memory.

    On CPUs the ranks of a machine have equal shares. On GPUs a rank's share is the free memory of
    its GPU. Return infinity if the system does not report how much memory is free.
    """
    if gpu.in_use():
        torch.cuda.empty_cache()
        return 0.9 * torch.cuda.mem_get_info()[0]
    free, memory = math.inf, Path("/proc/meminfo")
    if memory.exists() and (told := re.search(r"MemAvailable:\s*(\d+)", memory.read_text())):
        free = 1024 * int(told[1])
    # A container, or a job of Slurm, may get less memory than the machine has.
    free = min([free, *map(_free_in_group, _groups())])
    return 0.9 * free / int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def _groups() -> list[Path]:
    """Return the folders of this process's control group (cgroup v2) and of those around it."""
    try:
        own = next(line[3:] for line in OWN_GROUPS.read_text().splitlines() if line[:3] == "0::")
    except (OSError, StopIteration):
        return []
    below = Path(own.lstrip("/"))
    return [GROUPS / group for group in (below, *below.parents)]


def _free_in_group(group: Path) -> float:
    """Return how many more bytes the processes of a control group can allocate."""
    try:
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        # The kernel frees its cache of files when memory is short.
        cache = re.search(r"^inactive_file (\d+)", (group / "memory.stat").read_text(), re.M)
    except (OSError, ValueError):  # the group has no limit, or is not visible here
        return math.inf
    return max(0, limit - used + (int(cache[1]) if cache else 0))


def environment(ranks: list[dict]) -> dict:
    """Return the hardware and the versions on which the figures depend.

    ``ranks`` has the ``hardware()`` of each rank.
    """
    on_gpu, machines = gpu.in_use(), {rank["machine"]: rank for rank in ranks}
    # On GPUs list one device for each rank. On CPUs list one device for each machine, because the
    # ranks of a machine share its CPU.
    named = (
        ranks
        if on_gpu
        else [
            rank | {"device": f"{rank['device']}, {cores_text(rank['cores'])}"}
            for rank in machines.values()
        ]
    )
    counted = Counter(rank["device"] for rank in named)
    topology = None
    if shutil.which("nvidia-smi"):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            topology = subprocess.check_output(["nvidia-smi", "topo", "-m"], text=True, timeout=30)
    return {
        "hardware": " + ".join(
            f"{n} × {name}" if n > 1 or on_gpu else name for name, n in counted.items()
        ),
        "cores": sum(rank["cores"] for rank in machines.values()),
        "gpus": len(ranks) if on_gpu else 0,
        "machines": len(machines),
        "ranks": len(ranks),
        "device": device().type,
        "backend": dist.get_backend(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if on_gpu else None,
        "topology": topology,
        "link": gpu.link() if on_gpu and len(machines) == 1 < len(ranks) else None,
    }


def in_memory(environment: dict) -> bool:
    return environment["device"] == "cpu" and environment["machines"] == 1
