"""Run your own functions and look at what they do. Given, not graded.

    python -m handout.run collectives --world-size 4
    python -m handout.run data_parallel --world-size 4
    torchrun --nproc-per-node 4 -m handout.run collectives

One command starts all ranks on this machine; under ``torchrun``, on one machine or many, each rank is already there.
"""

import argparse
import importlib

import torch
import torch.distributed as dist

from handout import mlp
from handout.launcher import device, launch


def show(text: str) -> None:
    """Print from all ranks: rank 0 collects the lines and prints them."""
    lines: list = [None] * dist.get_world_size()
    dist.all_gather_object(lines, text)
    if dist.get_rank() == 0:
        print("\n".join(f"  rank {rank}: {line}" for rank, line in enumerate(lines)), flush=True)


def collectives(module_name: str) -> None:
    student = importlib.import_module(f"{module_name}.collectives")
    n, rank = dist.get_world_size(), dist.get_rank()
    mine = torch.arange(n, dtype=torch.float32, device=device()) + 10 * rank
    calls = {
        "broadcast from rank 0": lambda: student.broadcast(mine, 0),
        "scatter from rank 0": lambda: student.scatter(mine if rank == 0 else None, mine[:1], 0),
        "gather to rank 0": lambda: student.gather(mine, 0),
        "reduce to rank 0": lambda: student.reduce(mine, 0),
        "all-gather": lambda: student.all_gather(mine),
        "reduce-scatter": lambda: student.reduce_scatter(mine),
        "all-reduce": lambda: student.all_reduce(mine),
        "all-to-all": lambda: student.all_to_all(mine),
        "all-reduce from parts": lambda: student.all_reduce_from_parts(mine),
        "average": lambda: student.average(mine),
        "shift right": lambda: student.shift_right(mine),
        "ring all-reduce": lambda: student.ring_all_reduce(mine),
    }
    show(f"holds {mine.tolist()}")
    for name, call in calls.items():
        if rank == 0:
            print(name, flush=True)
        try:
            result = call()
            show(f"{None if result is None else result.tolist()}")
        except NotImplementedError as stub:
            show(f"not implemented yet ({stub})")


def data_parallel(module_name: str) -> None:
    student = importlib.import_module(f"{module_name}.data_parallel")
    n, rank = dist.get_world_size(), dist.get_rank()
    weights = [w.to(device()) for w in mlp.init_weights(num_layers=4, width=64, seed=rank)]
    generator = torch.Generator().manual_seed(0)
    batches = [torch.randn(16 * n, 64, generator=generator).to(device()) for _ in range(5)]
    try:
        student.broadcast_parameters(weights, root=0)
        show(f"first weight after the broadcast {weights[0][0, 0].item():+.6f}")
        losses, _ = student.train(weights, [student.shard_batch(batch) for batch in batches])
        show("losses " + " ".join(f"{loss:.6f}" for loss in losses.tolist()))
        show(f"first weight after training      {weights[0][0, 0].item():+.6f}")
    except NotImplementedError as stub:
        show(f"not implemented yet ({stub})")


PARTS = {"collectives": collectives, "data_parallel": data_parallel}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m handout.run", description=__doc__.split("\n")[0])
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("--world-size", type=int, default=4, metavar="N", help="local ranks to start (default 4)")
    parser.add_argument("--module", default="handout", help="the package that holds the answers (default handout)")
    arguments = parser.parse_args()
    launch(PARTS[arguments.part], arguments.world_size, arguments.module)


if __name__ == "__main__":
    main()
