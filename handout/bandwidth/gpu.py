"""Time operations with a GPU's own clock, and look up how fast its links are. Given, not graded."""

import contextlib
import re
import subprocess
from collections.abc import Callable
from typing import Any

import torch

from handout.launcher import device

# GB/s of one lane and one direction, by the generation of PCIe.
LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}


def in_use() -> bool:
    return device().type == "cuda"


def back_to_back(
    operation: Callable[[], object], times: int, event: Callable[..., Any] = torch.cuda.Event
) -> float:
    """Return the seconds of one call on this rank, from two CUDA events around all calls.

    The program does not wait between the calls, as in nccl-tests. So the host starts a call while
    the previous call still runs, and the time to start a call is hidden. This matters for small
    sizes. The stopwatch waits after every call, so its times include the time to start the call.

    Args:
        event: makes an event, as ``torch.cuda.Event`` does.
    """
    begin, end = event(enable_timing=True), event(enable_timing=True)
    begin.record()
    for _ in range(times):
        operation()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / times


def link() -> dict | None:
    """Return the kind and the speed of GPU 0's link to the other GPUs, according to the driver.

    The dict has the keys ``name`` and ``bandwidth`` (in GB/s, for one direction). Return None if
    nvidia-smi does not answer, or names a generation of PCIe that is not in ``LANE``.
    """
    speeds = [float(told) for told in re.findall(r"Link \d+: ([\d.]+) GB/s", ask("nvlink", "-s"))]
    if speeds:
        return {"name": f"NVLink, {len(speeds)} links", "bandwidth": sum(speeds)}
    told = ask("--query-gpu=pcie.link.gen.max,pcie.link.width.max", "--format=csv,noheader")
    found = re.match(r"(\d+), (\d+)", told)
    if not found or int(found[1]) not in LANE:
        return None
    generation, lanes = int(found[1]), int(found[2])
    return {"name": f"PCIe {generation}, {lanes} lanes", "bandwidth": lanes * LANE[generation]}


def ask(*arguments: str) -> str:
    """Return the answer of nvidia-smi for GPU 0, or "" if there is no answer."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        line = ["nvidia-smi", *arguments, "-i", "0"]
        return subprocess.check_output(line, text=True, timeout=30, stderr=subprocess.DEVNULL)
    return ""
