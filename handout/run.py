"""Run your own functions and show what they return. Given, not graded.

    python -m handout.run collectives --world-size 4
    python -m handout.run data_parallel --world-size 4
    python -m handout.run tensor_parallel --world-size 4
    python -m handout.run pipeline_parallel --world-size 4
    python -m handout.run sharded_data_parallel --world-size 4
    python -m handout.run device_mesh --world-size 4
    python -m handout.run schedules --world-size 4
    python -m handout.run sequence_and_experts --world-size 4
    torchrun --nproc-per-node 4 -m handout.run collectives

Without ``torchrun``, the command starts all ranks on this machine. ``torchrun`` starts the ranks
itself, on one machine or on many.
"""

import argparse
import importlib
import os
import signal
from collections.abc import Callable

# Importing torch takes seconds. With the system's default handler, Ctrl-C during the import ends
# the program without a traceback.
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import torch
import torch.distributed as dist

from handout import mlp
from handout.launcher import cores, device, launch, most_ranks


def show(text: str) -> None:
    """Print one line for each rank. All ranks call this together, and rank 0 prints."""
    lines: list = [None] * dist.get_world_size()
    dist.all_gather_object(lines, text)
    if dist.get_rank() == 0:
        print("\n".join(f"  rank {rank}: {line}" for rank, line in enumerate(lines)), flush=True)


# BEGIN WITH 1
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


# END WITH
# BEGIN WITH 3
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


# END WITH
# BEGIN WITH 4
def tensor_parallel(module_name: str) -> None:
    student = importlib.import_module(f"{module_name}.tensor_parallel")
    width = 16 * dist.get_world_size()
    weights = [w.to(device()) for w in mlp.init_weights(num_layers=4, width=width)]
    x = torch.randn(8, width, generator=torch.Generator().manual_seed(0)).to(device())
    alone = mlp.forward([w.requires_grad_() for w in weights], x.requires_grad_())
    mlp.loss(alone).backward()
    weights, x_alone = [w.detach() for w in weights], x.detach()
    try:
        shards = [student.shard_columns(weight) for weight in weights]
        show(
            f"holds {sum(s.numel() for s in shards)} of {sum(w.numel() for w in weights)}"
            " parameters"
        )
        y, saved = student.tensor_parallel_forward(shards, x_alone)
        show(
            "largest difference from the output of one device:           "
            f" {(y - alone).abs().max().item():.1e}"
        )
        grad_x, _ = student.tensor_parallel_backward(shards, saved, mlp.loss_backward(y))
        show(
            "largest difference from the input's gradient on one device: "
            f" {(grad_x - x.grad).abs().max().item():.1e}"
        )
        y = x_alone
        for first, second in zip(weights[::2], weights[1::2]):
            y = student.megatron_pair(student.shard_columns(first), student.shard_rows(second), y)
        show(
            "largest difference from the output of one device, in pairs: "
            f" {(y - alone).abs().max().item():.1e}"
        )
    except NotImplementedError as stub:
        show(f"not implemented yet ({stub})")


# END WITH
# BEGIN WITH 5
def pipeline_parallel(module_name: str) -> None:
    from handout.timeline import Timeline, chart

    student = importlib.import_module(f"{module_name}.pipeline_parallel")
    n, stage, micro_batches, rows, width = dist.get_world_size(), dist.get_rank(), 8, 64, 512
    weights = mlp.init_weights(num_layers=2 * n, width=width)
    x = torch.randn(micro_batches * rows, width, generator=torch.Generator().manual_seed(0))
    try:
        mine = [weights[layer].to(device()) for layer in student.split_layers(2 * n, n)[stage]]
        inputs = mine, x.to(device()) if stage == 0 else None, len(x), micro_batches
        for name in ("gpipe_schedule", "one_forward_one_backward_schedule"):
            schedule = getattr(student, name)(stage, n, micro_batches)
            # Only the second timeline is drawn, because the first run of a schedule is slow.
            for timeline in (Timeline(), Timeline()):
                dist.barrier()
                loss, _ = student.run_schedule(schedule, *inputs, timeline)
            timelines: list = [None] * n
            dist.all_gather_object(timelines, timeline.spans)
            try:
                theory = student.bubble_fraction(n, micro_batches)
                measured = student.measured_bubble(timelines)
                bubble = f"bubble {measured:.2f} measured, {theory:.2f} in theory"
            except NotImplementedError as stub:
                bubble = f"bubble: not implemented yet ({stub})"
            if stage == n - 1:
                print(f"{name}: loss {loss.item():.6f}, {bubble}")
                print(chart(timelines), flush=True)
                own = cores()
                if device().type == "cpu" and own < n:
                    print(
                        f"({n} stages share {own} core{'s' if own > 1 else ''} here, so stages"
                        " also wait for a core)",
                        flush=True,
                    )
            dist.barrier()
    except NotImplementedError as stub:
        show(f"not implemented yet ({stub})")


# END WITH
# BEGIN WITH 6
def sharded_data_parallel(module_name: str) -> None:
    student = importlib.import_module(f"{module_name}.sharded_data_parallel")
    n, rank, width = dist.get_world_size(), dist.get_rank(), 30
    weights = [w.to(device()) for w in mlp.init_weights(num_layers=4, width=width)]
    batch = torch.randn(8 * n, width, generator=torch.Generator().manual_seed(0)).to(device())
    alone = [w.clone().requires_grad_() for w in weights]
    optimizer = torch.optim.AdamW(alone)
    mlp.loss(mlp.forward(alone, batch)).backward()
    whole = [w.grad for w in alone]
    rows = batch.chunk(n)[rank]
    try:
        shards = [student.flat_shard([weight]) for weight in weights]
        held = sum(shard.numel() for shard in shards)
        show(f"holds {held} of {sum(w.numel() for w in weights)} parameters")
        for step in ("fully_sharded_step", "prefetched_step"):
            _, gradients = getattr(student, step)(shards, rows)
            right = [student.flat_shard([gradient]) for gradient in whole]
            far = max((a - b).abs().max().item() for a, b in zip(gradients, right))
            show(f"{step}: largest difference from the gradients of one device: {far:.1e}")
        local = [w.clone().requires_grad_() for w in weights]
        mlp.loss(mlp.forward(local, rows)).backward()
        zero = student.ZeroAdamW(weights)
        zero.step([w.grad for w in local])
        optimizer.step()
        far = max((a - b).abs().max().item() for a, b in zip(weights, alone))
        moments = sum(state["exp_avg"].numel() for state in zero.optimizer.state.values())
        show(
            f"ZeroAdamW: each moment has {moments} entries; largest difference from the weights of"
            f" one device: {far:.1e}"
        )
    except NotImplementedError as stub:
        show(f"not implemented yet ({stub})")


# END WITH
# BEGIN WITH 7
def device_mesh(module_name: str) -> None:
    student = importlib.import_module(f"{module_name}.device_mesh")
    n, rank = dist.get_world_size(), dist.get_rank()
    shape = (n // 2, 2) if n % 2 == 0 else (n, 1)
    width, rows = 16 * shape[1], 8
    whole = [w.to(device()) for w in mlp.init_weights(num_layers=4, width=width)]
    generator = torch.Generator().manual_seed(0)
    batch = torch.randn(rows * shape[0], width, generator=generator).to(device())
    alone = [w.clone().requires_grad_() for w in whole]
    of_whole = torch.autograd.grad(mlp.loss(mlp.forward(alone, batch)), alone)
    try:
        data, tensor = student.coordinates(rank, shape)
        show(f"is at ({data}, {tensor})")
        if rank == 0:
            print("  If nothing follows these lines, the ranks wait for each other.", flush=True)
        row, column = student.mesh_groups(shape)
        members = [dist.get_process_group_ranks(group) for group in (row, column)]
        show(f"is in row {members[0]} and column {members[1]}")
        cuts = [weight.chunk(shape[1], 1 - l % 2)[tensor] for l, weight in enumerate(whole)]
        x = batch[data * rows :][:rows]
        loss, gradients = student.mesh_step(list(zip(cuts[::2], cuts[1::2])), x, row, column)
        right = [g.chunk(shape[1], 1 - l % 2)[tensor] for l, g in enumerate(of_whole)]
        found = [gradient for pair in gradients for gradient in pair]
        farthest = max((a - b).abs().max().item() for a, b in zip(found, right))
        show(
            f"loss {loss.item():.6f}, largest difference from the gradients of one device:"
            f" {farthest:.1e}"
        )
        if farthest > 1e-4:
            show("These gradients are wrong. The checks say more: make test PART=device_mesh")
    except NotImplementedError as stub:
        show(f"not implemented yet ({stub})")


# END WITH
# BEGIN WITH 8
def schedules(module_name: str) -> None:
    from handout.schedule_runner import run_schedules, simulate
    from handout.timeline import Timeline, chart

    student = importlib.import_module(f"{module_name}.schedules")
    n, rank, rows, width = dist.get_world_size(), dist.get_rank(), 4, 16
    many, layers = 2 * n, 2 * n  # micro-batches, and layers of the model
    weights = [w.to(device()) for w in mlp.init_weights(layers, width)]
    x = torch.randn(many * rows, width, generator=torch.Generator().manual_seed(0)).to(device())
    leaves = [weight.clone().requires_grad_() for weight in weights]
    of_whole = torch.autograd.grad(mlp.loss(mlp.forward(leaves, x)), leaves)
    halves = student.backward_input, student.backward_weights

    def demo(name: str, chunks: int, make: Callable[[int], list], *halves: Callable) -> None:
        made = [make(stage) for stage in range(n)]
        each = layers // (n * chunks)
        firsts = [part * each for part in range(rank, n * chunks, n)]  # first layer of each chunk
        own = [weights[first:][:each] for first in firsts]
        batch = x if rank == 0 else None
        _, found = run_schedules(made, own, batch, len(x), many, Timeline(), *halves)
        far = torch.zeros((), device=device())
        for first, gradients in zip(firsts, found):
            for got, expected in zip(gradients, of_whole[first:]):
                far = torch.maximum(far, (got - expected).abs().max())
        dist.all_reduce(far, dist.ReduceOp.MAX)
        if rank == 0:
            times = {"F": 1 / chunks, "B": 1 / chunks, "W": 1 / chunks, "BW": 2 / chunks}
            spans = simulate(made, times)
            end = max(span.end for own in spans for span in own)
            print(f"{name}: {end:g} units of time in theory.")
            print(f"Largest difference from the gradients of one device: {far.item():.1e}")
            print(chart(spans), flush=True)

    if rank == 0:
        print(
            "0, 1, …: forward pass of micro-batch 0, 1, … (one for each chunk);"
            " a, b, …: its backward pass;"
        )
        print("A, B, …: gradients of the weights; ·: waiting")
    try:
        demo("1F1B", 1, lambda stage: student.interleaved_schedule(stage, n, 1, many))
        demo("interleaved", 2, lambda stage: student.interleaved_schedule(stage, n, 2, many))
        demo("zero-bubble", 1, lambda stage: student.zero_bubble_schedule(stage, n, many), *halves)
    except NotImplementedError as stub:
        show(f"not implemented yet ({stub})")


# END WITH
# BEGIN WITH 9
def sequence_and_experts(module_name: str) -> None:
    from handout.normalization import normalize

    student = importlib.import_module(f"{module_name}.sequence_and_experts")
    n, rank = dist.get_world_size(), dist.get_rank()
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(16 * n, 8, generator=generator).to(device()) for _ in range(3))
    gate = torch.randn(8, 2 * n, generator=generator).to(device())
    weights = [w.to(device()) for w in mlp.init_weights(2 * n, 8)]
    own = slice(16 * rank, 16 * (rank + 1))
    wide, back = mlp.init_weights(2, 8 * n)
    wide, back = wide[:8].to(device()), back[:, :8].to(device())
    try:
        pair = wide.chunk(n, 1)[rank], back.chunk(n)[rank]
        output, _ = student.sequence_parallel_forward(pair, q[own])
        whole = q + torch.nn.functional.gelu(normalize(q) @ wide) @ back
        farthest = (output - whole[own]).abs().max().item()
        show(f"sequence-parallel pair, largest difference from one device: {farthest:.1e}")
        for name, causal in (("not causal", False), ("causal", True)):
            whole = torch.nn.functional.scaled_dot_product_attention(
                q[None], k[None], v[None], is_causal=causal
            )[0]
            output, _ = student.ring_attention_forward(q[own], k[own], v[own], causal)
            farthest = (output - whole[own]).abs().max().item()
            show(f"attention, {name}, largest difference from one device: {farthest:.1e}")
        choice = (q[own] @ gate).argmax(1)
        _, sent, received, _ = student.exchange_routes(choice, 2)
        show(f"sends {sent} tokens to the ranks, and receives {received}")
        y, _ = student.mixture_forward(gate, weights[2 * rank :][:2], q[own])
        p = (q[own] @ gate).softmax(1).amax(1)
        alone = [mlp.layer_forward(x[None], weights[c])[0][0] for x, c in zip(q[own], choice)]
        farthest = (y - p[:, None] * torch.stack(alone)).abs().max().item()
        show(f"mixture, largest difference from one device: {farthest:.1e} (right: less than 1e-4)")
    except NotImplementedError as stub:
        show(f"not implemented yet ({stub})")


# END WITH
PARTS = {
    # BEGIN WITH 1
    "collectives": collectives,
    # END WITH
    # BEGIN WITH 3
    "data_parallel": data_parallel,
    # END WITH
    # BEGIN WITH 4
    "tensor_parallel": tensor_parallel,
    # END WITH
    # BEGIN WITH 5
    "pipeline_parallel": pipeline_parallel,
    # END WITH
    # BEGIN WITH 6
    "sharded_data_parallel": sharded_data_parallel,
    # END WITH
    # BEGIN WITH 7
    "device_mesh": device_mesh,
    # END WITH
    # BEGIN WITH 8
    "schedules": schedules,
    # END WITH
    # BEGIN WITH 9
    "sequence_and_experts": sequence_and_experts,
    # END WITH
}


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m handout.run", description=__doc__.split("\n")[0]
    )
    parser.add_argument("part", choices=PARTS)
    parser.add_argument(
        "--world-size",
        type=int,
        default=4,
        metavar="N",
        help=f"local ranks to start, 1 to {most_ranks()} (default 4); ignored under torchrun",
    )
    parser.add_argument(
        "--module", default="handout", help="the package with your functions (default: handout)"
    )
    arguments = parser.parse_args()
    if not 1 <= arguments.world_size <= most_ranks():
        parser.error(f"--world-size must be from 1 to {most_ranks()}, not {arguments.world_size}")
    # The launcher needs Python's usual handler to handle Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    launch(PARTS[arguments.part], arguments.world_size, arguments.module)


if __name__ == "__main__":
    main()
