"""Start the ranks of a distributed program. Given, not graded.

    from handout.launcher import launch
    launch(function, world_size=4, *arguments)       # function(*arguments) runs on four ranks of this machine

Under ``torchrun`` the ranks have been started already, on one machine or on many; then ``launch`` only joins their
process group and calls the function, and ``world_size`` is what torchrun says.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

# Now, and not when an optimizer imports it: its functions take the process group of that moment for a default, which then
# outlives its own destruction, and now and then ends a rank that is done with "terminate called without an active exception".
import torch.distributed.nn.functional  # noqa: F401
import torch.multiprocessing as mp


def device() -> torch.device:
    """This rank's device: its own GPU where there is one for every local rank, else the CPU."""
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if torch.cuda.device_count() >= local_world_size:
        return torch.device("cuda", local_rank)
    return torch.device("cpu")


def launch(function: Callable, world_size: int, *arguments) -> None:
    """Run ``function(*arguments)`` on ``world_size`` ranks, each with the process group ready, and wait for them.

    ``function`` and ``arguments`` must be importable and picklable, as for any ``multiprocessing`` target. A rank that
    raises ends them all, and its exception is raised here.

    Raises:
        ValueError: ``world_size`` is not positive.
    """
    if world_size < 1:
        raise ValueError(f"a world needs at least one rank, not {world_size}")
    if dist.is_torchelastic_launched():
        _join(function, arguments, init_method="env://")
        return
    with tempfile.TemporaryDirectory() as folder:
        # A file for the rendezvous: no port, so that two programs on one machine cannot collide.
        rendezvous = (Path(folder) / "rendezvous").as_uri()
        mp.spawn(_rank, (world_size, rendezvous, function, arguments), nprocs=world_size)


def _rank(rank: int, world_size: int, rendezvous: str, function: Callable, arguments: tuple) -> None:
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world_size))
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // world_size))
    _join(function, arguments, init_method=rendezvous, rank=rank, world_size=world_size)


def _join(function: Callable, arguments: tuple, **rendezvous) -> None:
    if device().type == "cuda":
        torch.cuda.set_device(device())
        dist.init_process_group("nccl", device_id=device(), **rendezvous)
    else:
        dist.init_process_group("gloo", **rendezvous)
    try:
        function(*arguments)
    finally:
        dist.destroy_process_group()
