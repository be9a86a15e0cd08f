"""Compares the speed of the reference and of torch:  python -m grader.selftest.bench_steps

Each step has a forward and a backward pass. In every round the ranks run the reference, torch,
torch, and the reference. So a slow change of the machine's speed affects both alike. The time of
the slowest rank counts. Before the first round, the command checks that both compute the same.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import (
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)
from torch.nn.parallel import DistributedDataParallel

from grader.selftest.oracles import (
    cut_by_columns,
    cut_by_columns_gathered_late,
    cut_in_pairs,
    cut_on_mesh,
    made_schedules,
    mesh_shape,
    my_stage,
    torch_chunks,
    torch_gradients,
    torch_mlp,
    torch_pipeline,
    torch_sharded,
)
from grader.selftest.oracles_tokens import (
    autograd_mixture,
    cut_by_tokens,
    torch_ring,
    torch_ring_backward,
)
from handout import mlp, schedule_runner
from handout.launcher import launch
from handout.timeline import Timeline
from solutions import (
    data_parallel,
    device_mesh,
    pipeline_parallel,
    schedules,
    sequence_and_experts,
    sharded_data_parallel,
    tensor_parallel,
)

RANKS, LAYERS, WIDTH, BATCH, MICRO_BATCHES, ROUNDS = 2, 4, 1024, 128, 4, 20
TOKENS, HEAD = 2048, 64  # of ring attention: the whole sequence, and the width of one head
EXPERTS = 2  # of each rank

# A step computes and returns the loss, or None if this rank does not know it. It also returns a
# function that returns the gradients.
Step = Callable[[], tuple[Tensor | None, Callable[[], list[Tensor]]]]


def by_autograd(
    model: Callable[[Tensor], Tensor],
    leaves: list[Tensor],
    x: Tensor,
    finish: Callable = lambda: None,
) -> Step:
    """Return a step of ordinary autograd. It calls ``finish`` after the backward pass."""

    def step():
        for leaf in leaves:
            leaf.grad = None
        loss = mlp.loss(model(x))
        loss.backward()
        finish()
        return loss, lambda: [leaf.grad for leaf in leaves]

    return step


def by_module(module: nn.Module, x: Tensor) -> Step:
    step = by_autograd(module, [*module.parameters(), *[x] * x.requires_grad], x)
    return lambda: (step()[0], lambda: torch_gradients(module))


def one_process(weights: list[Tensor], x: Tensor) -> Step:
    leaves = [weight.clone().requires_grad_() for weight in weights]
    step = by_autograd(lambda x: mlp.forward(leaves, x), leaves, x)
    return step if dist.get_rank() == 0 else lambda: (None, list)


def data_parallel_step(weights: list[Tensor], x: Tensor) -> Step:
    shard = data_parallel.shard_batch(x)

    def step():
        loss, gradients = data_parallel.data_parallel_step(weights, shard)
        return loss, lambda: gradients

    return step


def gradient_buckets(weights: list[Tensor], x: Tensor) -> Step:
    leaves = [weight.clone().requires_grad_() for weight in weights]
    buckets = data_parallel.GradientBuckets(leaves, bucket_bytes=4 << 20)  # a bucket for each layer
    return by_autograd(
        lambda x: mlp.forward(leaves, x), leaves, data_parallel.shard_batch(x), buckets.wait
    )


def ddp(**options: float) -> Callable[[list[Tensor], Tensor], Step]:
    def build(weights: list[Tensor], x: Tensor) -> Step:
        return by_module(
            DistributedDataParallel(torch_mlp(weights), **options), data_parallel.shard_batch(x)
        )

    return build


def tensor_columns(weights: list[Tensor], x: Tensor) -> Step:
    shards = [tensor_parallel.shard_columns(weight) for weight in weights]

    def step():
        y, saved = tensor_parallel.tensor_parallel_forward(shards, x)
        _, gradients = tensor_parallel.tensor_parallel_backward(shards, saved, mlp.loss_backward(y))
        return mlp.loss(y), lambda: gradients

    return step


def megatron_pairs(weights: list[Tensor], x: Tensor) -> Step:
    columns = map(tensor_parallel.shard_columns, weights[::2])
    rows = map(tensor_parallel.shard_rows, weights[1::2])
    pairs = [(column.requires_grad_(), row.requires_grad_()) for column, row in zip(columns, rows)]

    def model(x: Tensor) -> Tensor:
        for column, row in pairs:
            x = tensor_parallel.megatron_pair(column, row, x)
        return x

    return by_autograd(model, [leaf for pair in pairs for leaf in pair], x)


def mesh_step(weights: list[Tensor], x: Tensor) -> Step:
    """Return a step on a mesh of one row. More rows would only divide the work of each rank."""
    columns = [tensor_parallel.shard_columns(weight) for weight in weights[::2]]
    rows = [tensor_parallel.shard_rows(weight) for weight in weights[1::2]]
    groups = device_mesh.mesh_groups(mesh_shape())

    def step():
        loss, pairs = device_mesh.mesh_step(list(zip(columns, rows)), x, *groups)
        return loss, lambda: [gradient for pair in pairs for gradient in pair]

    return step


def with_x(cut: Callable[[list[Tensor]], nn.Module]) -> Callable[[list[Tensor], Tensor], Step]:
    """Return a function that builds steps of torch's tensor parallelism, with the gradient of x."""
    return lambda weights, x: by_module(cut(weights), x.clone().requires_grad_())


def schedule(make: Callable) -> Callable[[list[Tensor], Tensor], Step]:
    def build(weights: list[Tensor], x: Tensor) -> Step:
        rank, stage = dist.get_rank(), my_stage(weights)
        actions = make(rank, dist.get_world_size(), MICRO_BATCHES)

        def step():
            mine = x if rank == 0 else None
            loss, gradients = pipeline_parallel.run_schedule(
                actions, stage, mine, BATCH, MICRO_BATCHES, Timeline()
            )
            return loss, lambda: gradients

        return step

    return build


def torch_schedule(kind: type) -> Callable[[list[Tensor], Tensor], Step]:
    def build(weights: list[Tensor], x: Tensor) -> Step:
        run, module = torch_pipeline(kind, my_stage(weights), MICRO_BATCHES)

        def step():
            module.zero_grad()
            return run(x)[1], lambda: torch_gradients(module)

        return step

    return build


def my_chunks(weights: list[Tensor], v: int) -> list[list[Tensor]]:
    cut = schedules.chunk_layers(len(weights), dist.get_rank(), dist.get_world_size(), v)
    return [[weights[l] for l in own] for own in cut]


def chunked(v: int) -> Callable[[list[Tensor], Tensor], Step]:
    """Return a function that builds a step of interleaved schedules with v chunks.

    If v is 1, the step runs zero-bubble schedules.
    """

    def build(weights: list[Tensor], x: Tensor) -> Step:
        chunks, made = my_chunks(weights, v), made_schedules(v, MICRO_BATCHES)
        halves = schedules.backward_input, schedules.backward_weights
        mine = x if dist.get_rank() == 0 else None

        def step():
            loss, gradients = schedule_runner.run_schedules(
                made, chunks, mine, BATCH, MICRO_BATCHES, Timeline(), *halves
            )
            return loss, lambda: [gradient for own in gradients for gradient in own]

        return step

    return build


def torch_chunked(kind: type, v: int) -> Callable[[list[Tensor], Tensor], Step]:
    def build(weights: list[Tensor], x: Tensor) -> Step:
        run, modules, _ = torch_chunks(kind, my_chunks(weights, v), MICRO_BATCHES)

        def step():
            for module in modules:
                module.zero_grad()
            return run(x), lambda: [g for module in modules for g in torch_gradients(module)]

        return step

    return build


def zero(weights: list[Tensor], x: Tensor) -> Step:
    """Return a step that updates the weights. It returns these weights in place of gradients."""
    own, shard = [weight.clone() for weight in weights], data_parallel.shard_batch(x)
    leaves = [weight.detach().requires_grad_() for weight in own]  # the same memory
    made = sharded_data_parallel.ZeroAdamW(own)
    step = by_autograd(lambda x: mlp.forward(leaves, x), leaves, shard)

    def run():
        loss, gradients = step()
        made.step(gradients())
        return loss, lambda: own

    return run


def torch_zero(weights: list[Tensor], x: Tensor) -> Step:
    module = DistributedDataParallel(torch_mlp(weights))
    made = ZeroRedundancyOptimizer(module.parameters(), torch.optim.AdamW, lr=1e-3)
    step = by_module(module, data_parallel.shard_batch(x))

    def run():
        loss, _ = step()
        made.step()
        return loss, lambda: [parameter.detach().T for parameter in module.parameters()]

    return run


def sharded(step: Callable) -> Callable[[list[Tensor], Tensor], Step]:
    def build(weights: list[Tensor], x: Tensor) -> Step:
        rows = data_parallel.shard_batch(x)
        shards = [sharded_data_parallel.flat_shard([weight]) for weight in weights]

        def run():
            loss, gradients = step(shards, rows)
            return loss, lambda: gradients

        return run

    return build


def fsdp(weights: list[Tensor], x: Tensor) -> Step:
    module, rows = torch_sharded(weights), data_parallel.shard_batch(x)
    leaves = list(module.parameters())

    def gradients() -> list[Tensor]:
        full = [leaf.grad.full_tensor().T for leaf in leaves]  # torch's shards are rows of W.T
        return [sharded_data_parallel.flat_shard([gradient]) for gradient in full]

    step = by_autograd(module, leaves, rows)
    return lambda: (step()[0], gradients)


def sequence_pair(weights: list[Tensor], x: Tensor) -> Step:
    columns = tensor_parallel.shard_columns(weights[0])
    pair, rows = (columns, tensor_parallel.shard_rows(weights[1])), data_parallel.shard_batch(x)

    def step():
        y, saved = sequence_and_experts.sequence_parallel_forward(pair, rows)
        grad_y = mlp.loss_backward(y)
        _, gradients = sequence_and_experts.sequence_parallel_backward(pair, saved, grad_y)
        return mlp.loss(y), lambda: list(gradients)

    return step


def torch_sequence_pair(weights: list[Tensor], x: Tensor) -> Step:
    rows = data_parallel.shard_batch(x).clone().requires_grad_()
    module = cut_by_tokens(weights)
    step = by_autograd(module, [rows, *module.parameters()], rows)
    return lambda: (step()[0], lambda: torch_gradients(module))


OWN_RING = (
    sequence_and_experts.ring_attention_forward,
    sequence_and_experts.ring_attention_backward,
)


def ring(forward: Callable, backward: Callable, causal: bool) -> Callable:
    """Return a function that builds a step of ring attention on one head.

    The step returns the output and the gradients, but no loss.
    """

    def build(weights: list[Tensor], x: Tensor) -> Step:
        rank, own = dist.get_rank(), TOKENS // dist.get_world_size()
        drawn = torch.randn(4, TOKENS, HEAD, generator=torch.Generator().manual_seed(2))
        q, k, v, upstream = (rows[rank * own :][:own].contiguous() for rows in drawn)

        def step():
            output, logsumexp = forward(q, k, v, causal)
            gradients = backward(q, k, v, output, logsumexp, upstream, causal)
            return None, lambda: [output, *gradients]

        return step

    return build


def mixture(weights: list[Tensor], x: Tensor) -> Step:
    gate, rows = gate_of(weights), data_parallel.shard_batch(x)

    def step():
        y, saved = sequence_and_experts.mixture_forward(gate, weights[:EXPERTS], rows)
        found = sequence_and_experts.mixture_backward(
            gate, weights[:EXPERTS], saved, mlp.loss_backward(y)
        )
        return mlp.loss(y), lambda: [found[0], found[1], *found[2]]

    return step


def torch_mixture(weights: list[Tensor], x: Tensor) -> Step:
    gate, *experts = (t.clone().requires_grad_() for t in (gate_of(weights), *weights[:EXPERTS]))
    rows = data_parallel.shard_batch(x).clone().requires_grad_()

    def model(x: Tensor) -> Tensor:
        return autograd_mixture(gate, experts, x)

    # each rank has a part of the gate's gradient
    return by_autograd(model, [rows, gate, *experts], rows, lambda: dist.all_reduce(gate.grad))


def gate_of(weights: list[Tensor]) -> Tensor:
    return weights[-1][:, : EXPERTS * dist.get_world_size()].contiguous()


# name, the reference, torch's name, torch's
ROWS = [
    ("one process, whole batch", one_process, "", None),
    ("data parallel, step", data_parallel_step, "DDP", ddp()),
    ("data parallel, buckets", gradient_buckets, "DDP, 4 MiB buckets", ddp(bucket_cap_mb=4)),
    ("tensor, columns", tensor_columns, "Colwise, replicated", with_x(cut_by_columns)),
    ("tensor, columns", tensor_columns, "Colwise, sharded", with_x(cut_by_columns_gathered_late)),
    (
        "tensor, pairs",
        megatron_pairs,
        "Colwise, Rowwise",
        lambda w, x: by_module(cut_in_pairs(w), x),
    ),
    ("mesh, 1 × 2", mesh_step, "Rowwise, fully_shard", lambda w, x: by_module(cut_on_mesh(w), x)),
    (
        "pipeline, GPipe",
        schedule(pipeline_parallel.gpipe_schedule),
        "ScheduleGPipe",
        torch_schedule(ScheduleGPipe),
    ),
    (
        "pipeline, 1F1B",
        schedule(pipeline_parallel.one_forward_one_backward_schedule),
        "Schedule1F1B",
        torch_schedule(Schedule1F1B),
    ),
    (
        "interleaved, 2 chunks",
        chunked(2),
        "ScheduleInterleav…",
        torch_chunked(ScheduleInterleaved1F1B, 2),
    ),
    (
        "zero-bubble, ZB-H1",
        chunked(1),
        "…ZeroBubble",
        torch_chunked(ScheduleInterleavedZeroBubble, 1),
    ),
    ("sharded, ZeRO-1 step", zero, "DDP, ZeroRedundancy…", torch_zero),
    (
        "fully sharded",
        sharded(sharded_data_parallel.fully_sharded_step),
        "fully_shard",
        fsdp,
    ),
    (
        "fully sharded, prefetch",
        sharded(sharded_data_parallel.prefetched_step),
        "fully_shard",
        fsdp,
    ),
    ("sequence-parallel pair", sequence_pair, "SequenceParallel", torch_sequence_pair),
    (
        "ring attention",
        ring(*OWN_RING, causal=False),
        "context parallel",
        ring(torch_ring, torch_ring_backward, causal=False),
    ),
    (
        "ring attention, causal",
        ring(*OWN_RING, causal=True),
        "context parallel",
        ring(torch_ring, torch_ring_backward, causal=True),
    ),
    ("experts, 2 per rank", mixture, "autograd, all_to_all", torch_mixture),
]


def seconds(step: Step) -> float:
    """Return the seconds of one step on the slowest rank."""
    dist.barrier()
    began = time.monotonic()
    step()
    elapsed = torch.tensor(time.monotonic() - began)
    dist.all_reduce(elapsed, dist.ReduceOp.MAX)
    return elapsed.item()


def require_same(name: str, reference: Step, by_torch: Step) -> None:
    """Raise RuntimeError unless both sides do the same work.

    Their losses and gradients are the same within float32, as vectors. A single entry is no
    measure: AdamW divides each gradient by about its own size, so that a gradient of nearly zero
    turns its rounding error into a step of the whole learning rate.
    """
    (loss, gradients), (torch_loss, torch_gradients) = reference(), by_torch()
    if (loss is None) != (torch_loss is None):
        raise RuntimeError(f"{name}: only one side knows a loss")
    mine, theirs = [*gradients()], [*torch_gradients()]
    if loss is not None:
        mine, theirs = [*mine, loss], [*theirs, torch_loss]
    for number, (actual, expected) in enumerate(zip(mine, theirs, strict=True)):
        error = float((actual - expected).detach().norm() / expected.detach().norm())
        if actual.shape != expected.shape or not error < 1e-5:
            raise RuntimeError(f"{name}: tensor {number} differs from torch's by {error:.1e}")


def same_rows() -> list[tuple[Step, Step | None]]:
    """Return the steps of all rows, each tried once and compared with torch's."""
    torch.set_num_threads(1)
    weights = mlp.init_weights(LAYERS, WIDTH)
    x = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(1))
    rows = [
        (reference(weights, x), by_torch and by_torch(weights, x))
        for _, reference, _, by_torch in ROWS
    ]
    for (name, *_), (reference, by_torch) in zip(ROWS, rows):
        reference()  # a warm-up; the comparison is another one
        if by_torch:
            by_torch()
            require_same(name, reference, by_torch)
    return rows


def take_turns(folder: Path) -> None:
    """Run all rows, round after round. Every rank calls this function.

    Rank 0 writes the times: for each row, those of the reference and those of torch.
    """
    rows = same_rows()
    times: list[tuple[list[float], list[float]]] = [([], []) for _ in rows]
    for _ in range(ROUNDS):
        for (reference, by_torch), (ours, theirs) in zip(rows, times):
            ours.append(seconds(reference))
            if by_torch:
                theirs += [seconds(by_torch), seconds(by_torch)]
                ours.append(seconds(reference))
    if dist.get_rank() == 0:
        (folder / "times.json").write_text(json.dumps(times))


def median(times: list[float]) -> str:
    return (
        f"{statistics.median(times) * 1e3:6.1f} ms  ({min(times) * 1e3:.1f} …"
        f" {max(times) * 1e3:.1f})"
    )


def bench_steps() -> None:
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        launch(take_turns, RANKS, Path(folder))
        times = json.loads((Path(folder) / "times.json").read_text())
    print(
        f"\nForward and backward of one step: batch {BATCH}, {LAYERS} layers of {WIDTH} × {WIDTH},"
        f" float32, {RANKS} ranks"
    )
    print(
        f"of one thread, gloo, {MICRO_BATCHES} micro-batches; ring attention: {TOKENS} tokens of"
        f" width {HEAD} (median of {2 * ROUNDS}, in turns; min … max)"
    )
    print(f"  {'':24}  {'reference':31}  {'torch':53}  reference/torch")
    for (name, _, torch_name, _), (ours, theirs) in zip(ROWS, times):
        line = f"  {name:24}  {median(ours):31}"
        if theirs:
            line += (
                f"  {torch_name:20}  {median(theirs):31} "
                f" {statistics.median(ours) / statistics.median(theirs):5.2f}×"
            )
        print(line.rstrip())


if __name__ == "__main__":
    bench_steps()
