"""Finds the GPUs that ranks can use here, and says how many ranks may share one of them.

To find out, a separate process uses each GPU once, and ends. The fork server must not even count
the GPUs: counting starts the GPUs' driver in a process, and a driver does not survive a fork.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from grader.world.fork_server_client import ENGINE, WorldsUnavailable

# torch has to use each GPU once within these seconds. The first use after a boot is slow.
FIRST_USE_SECONDS = 120
# GPU memory that a rank needs: the CUDA context, cuBLAS, and the small tensors of a check.
RANK_GPU_BYTES = 2 << 30
MAX_RANKS_EACH = 8  # ranks that share one GPU; more would only wait for each other
PROGRAM = (
    "import json, sys; sys.path.insert(0, sys.argv[1]); import torch;"
    " from grader.world.gpus import look; print(json.dumps(look(torch)))"
)


@dataclass(frozen=True)
class Gpus:
    """The GPUs that ranks can use."""

    ids: list[str]  # as CUDA_VISIBLE_DEVICES names them
    model: str
    ranks_each: int  # how many ranks may share one GPU
    nccl: str  # the version of nccl, such as 2.29.7; empty if there is none

    @property
    def ranks(self) -> int:
        """Return how many ranks these GPUs have room for."""
        return len(self.ids) * self.ranks_each

    def __str__(self) -> str:
        return f"{len(self.ids)} × {self.model}"

    def are_shared_by(self, size: int) -> bool:
        """Return whether ranks of a world of this size have to share GPUs."""
        return size > len(self.ids)


def usable() -> Gpus:
    """Return the GPUs that ranks can use here.

    Raises WorldsUnavailable, with a sentence for the instructor, if no GPU can be used.
    """
    line = [sys.executable, "-I", "-c", PROGRAM, str(ENGINE)]
    try:
        asked = subprocess.run(line, capture_output=True, text=True, timeout=FIRST_USE_SECONDS)
    except subprocess.TimeoutExpired:
        raise _none(
            f"torch needed more than {FIRST_USE_SECONDS} seconds to use each GPU once"
        ) from None
    if asked.returncode:
        last = asked.stderr.strip().splitlines()[-1:] or [f"exit code {asked.returncode}"]
        raise _none(last[0])
    found = json.loads(asked.stdout.splitlines()[-1])
    if found["fault"]:
        raise _none(found["fault"])
    gpus = found["gpus"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    ids = visible.split(",")[: len(gpus)] if visible else [str(i) for i in range(len(gpus))]
    room = min(gpu["free"] for gpu in gpus) // RANK_GPU_BYTES
    if not room:
        raise _none(f"a GPU has less than {RANK_GPU_BYTES >> 30} GiB of free memory")
    return Gpus(ids, gpus[0]["name"], int(min(room, MAX_RANKS_EACH)), found["nccl"])


def _none(reason: str) -> WorldsUnavailable:
    return WorldsUnavailable(f"no GPU can be used here: {reason}")


def look(torch: Any) -> dict:
    """Use each GPU once with this ``torch``, and return facts about the GPUs, as plain JSON.

    ``fault`` says why torch can use no GPU; it is empty if torch can use a GPU. ``gpus`` has the
    name and the free bytes of each GPU. ``nccl`` is the version of nccl; it is empty if there is
    none.
    """
    found: dict[str, Any] = {"fault": "", "gpus": [], "nccl": ""}
    if not torch.version.cuda:
        found["fault"] = (
            f"torch {torch.__version__} is a build for CPUs only; with an NVIDIA GPU,"
            " `make setup TORCH_INDEX=` installs a build for CUDA"
        )
        return found
    for index in range(torch.cuda.device_count()):
        device = torch.device("cuda", index)
        torch.ones(2, 2, device=device).sum().item()
        free, _ = torch.cuda.mem_get_info(device)
        found["gpus"].append({"name": torch.cuda.get_device_name(device), "free": free})
    if not found["gpus"]:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        found["fault"] = "torch finds no GPU" + (
            "" if visible is None else f", and CUDA_VISIBLE_DEVICES is “{visible}”"
        )
    elif torch.distributed.is_nccl_available():
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
    return found
