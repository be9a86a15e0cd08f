"""Runs the grader, or its fork server, as if this machine had GPUs.

    python pretend_gpus.py grader SUBMISSION --device cuda …
    python pretend_gpus.py ENGINE DOOR FOLDER fork          (as fork_server.py)

The tensors of a rank on a GPU stay in the CPU's memory. Everything else is as on GPUs: each rank
gets a list of the GPUs that it may use, the ranks share the GPUs, and the hub copies what they
communicate as if the tensors were on a GPU. So this shows what does not depend on CUDA itself.
"""

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def grade() -> int:
    from grader import __main__ as command
    from grader.world import fork_server_client, gpus

    fork_server_client.PROGRAM = Path(__file__)
    command.usable = lambda: gpus.Gpus(["0", "1"], "GPU that is none", 4, "")
    return command.main()


def serve() -> None:
    """Serve ranks on CPUs as usual, and those on GPUs as if their tensors lay there."""
    import torch

    from grader.rank import argument_checks, gpu, process_group, tensor_memory
    from grader.supervisor import fork_server

    def start(index: int) -> torch.device:
        for module in (argument_checks, process_group, tensor_memory):
            module.is_on_host = lambda tensor: False
        return torch.device("cpu")

    count, server = torch.cuda.device_count, os.getpid()

    def count_outside_of_the_server() -> int:
        if os.getpid() == server:
            raise AssertionError("what a driver sets up does not survive a fork")
        return count()

    gpu.start, torch.cuda.device_count = start, count_outside_of_the_server
    fork_server.main(*sys.argv[1:])


if __name__ == "__main__":
    if sys.argv[1] == "grader":
        del sys.argv[1]
        sys.exit(grade())
    serve()
