"""Compare the reference with torch's own parallelism: on the same ranks, with the same numbers.

Everything here runs on the ranks. A comparison returns named tensors three times: the reference's,
torch's, and those that this rank would get without communicating. The third ones must differ from
torch's. Otherwise equal numbers would prove nothing.
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from grader.reference import chunked
from handout import mlp, schedule_runner
from handout.timeline import Timeline
from solutions import (
    data_parallel,
    device_mesh,
    pipeline_parallel,
    schedules,
    sharded_data_parallel,
    tensor_parallel,
)

Tensors = dict[str, Tensor]
Comparison = tuple[Tensors, Tensors, Tensors]  # the reference's, torch's, this rank alone

# 24 columns and rows divide by 2, 3 and 4 ranks; 6 layers make unequal stages of 4.
LAYERS, WIDTH, BATCH, MICRO_BATCHES = 6, 24, 24, 6


def torch_mlp(weights: list[Tensor]) -> nn.Sequential:
    """Return the model of ``mlp.forward`` as torch's modules.

    ``nn.Linear`` keeps its weight transposed.
    """
    modules: list[nn.Module] = []
    for weight in weights:
        linear = nn.Linear(*weight.shape, bias=False, dtype=weight.dtype)
        linear.weight = nn.Parameter(weight.T.contiguous())
        modules += [linear, nn.GELU()]
    return nn.Sequential(*modules)


def torch_gradients(model: nn.Module) -> list[Tensor]:
    """Return the gradients in the reference's form: this rank's shards, not transposed."""
    gradients = [parameter.grad for parameter in model.parameters()]
    return [(g.to_local() if isinstance(g, DTensor) else g).T for g in gradients]


def cut_by_columns(weights: list[Tensor]) -> nn.Module:
    """Return torch's model, cut by columns. All ranks have each layer's whole output.

    ``tensor_parallel_forward`` does the same.
    """
    return _parallelize(weights, [ColwiseParallel(output_layouts=Replicate())] * len(weights))


def cut_by_columns_gathered_late(weights: list[Tensor]) -> nn.Module:
    """Return torch's model, cut by columns, with gelu before the gather.

    Then the backward pass has a reduce-scatter for the gather, as the reference has.
    """
    layouts = [Replicate(), *[Shard(-1)] * (len(weights) - 1), Replicate()]
    plan = [
        ColwiseParallel(input_layouts=a, output_layouts=b) for a, b in zip(layouts, layouts[1:])
    ]
    return _parallelize(weights, plan)


def cut_in_pairs(weights: list[Tensor]) -> nn.Module:
    """Return torch's model, cut by columns and by rows in turn, as in ``megatron_pair``."""
    return _parallelize(weights, [ColwiseParallel(), RowwiseParallel()] * (len(weights) // 2))


def _parallelize(weights: list[Tensor], plan: list) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    names = [str(2 * l) for l in range(len(weights))]  # every second module is a gelu
    return parallelize_module(torch_mlp(weights), mesh, dict(zip(names, plan)))


def mesh_shape() -> tuple[int, int]:
    """Return the shape of the mesh: (2, 2) for 4 ranks, (1, 2) for 2 ranks, (3, 1) for 3 ranks."""
    n = dist.get_world_size()
    return (n // 2, 2) if n % 2 == 0 else (n, 1)


def cut_on_mesh(weights: list[Tensor]) -> nn.Module:
    """Return torch's model, cut in pairs along the mesh's rows, fully sharded down its columns."""
    mesh = init_device_mesh("cpu", mesh_shape(), mesh_dim_names=("data", "tensor"))
    plan = [ColwiseParallel(), RowwiseParallel()] * (len(weights) // 2)
    names = [str(2 * l) for l in range(len(weights))]
    module = parallelize_module(torch_mlp(weights), mesh["tensor"], dict(zip(names, plan)))
    return fully_shard(module, mesh=mesh["data"])


def torch_pipeline(
    schedule: type, stage_weights: list[Tensor], num_micro_batches: int
) -> tuple[Callable, nn.Module]:
    """Return ``(step, module)`` of this rank's stage.

    Every rank calls ``step(x)``. It returns ``(y, loss)`` on the last stage.
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    module = torch_mlp(stage_weights)
    stage = PipelineStage(module, rank, n, torch.device("cpu"))
    # Torch divides the gradients by the number of micro-batches. So the loss is the mean over the
    # micro-batches, like the reference's loss.
    run = schedule(stage, num_micro_batches, loss_fn=lambda y, target: mlp.loss(y))

    def step(x: Tensor) -> tuple[Tensor | None, Tensor | None]:
        losses: list[Tensor] = []
        y = run.step(*[x] if rank == 0 else [], target=x if rank == n - 1 else None, losses=losses)
        return y, torch.stack(losses).mean() if rank == n - 1 else None

    return step, module


def my_stage(weights: list[Tensor]) -> list[Tensor]:
    return [
        weights[l]
        for l in pipeline_parallel.split_layers(len(weights), dist.get_world_size())[
            dist.get_rank()
        ]
    ]


def on_one_device(weights: list[Tensor], x: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return ``(y, gradient of x, gradients of the weights)``, by autograd on one device."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in (x, *weights)]
    y = mlp.forward(leaves[1:], leaves[0])
    grad_x, *gradients = torch.autograd.grad(mlp.loss(y), leaves)
    return y.detach(), grad_x, gradients


def named(gradients: list[Tensor], **others: Tensor | None) -> Tensors:
    tensors = {name: tensor.detach() for name, tensor in others.items() if tensor is not None}
    return tensors | {f"gradient of layer {l}": gradient for l, gradient in enumerate(gradients)}


def _ddp(weights: list[Tensor], shard: Tensor) -> Tensors:
    model = DistributedDataParallel(torch_mlp(weights), bucket_cap_mb=0.01)  # room for two layers
    loss = mlp.loss(model(shard))
    loss.backward()
    return named(torch_gradients(model), loss=loss)


def data_parallel_step(weights: list[Tensor], x: Tensor) -> Comparison:
    shard = data_parallel.shard_batch(x)
    loss, gradients = data_parallel.data_parallel_step(weights, shard)
    return (
        named(gradients, loss=loss),
        _ddp(weights, shard),
        named(on_one_device(weights, shard)[2]),
    )


def gradient_buckets(weights: list[Tensor], x: Tensor) -> Comparison:
    shard = data_parallel.shard_batch(x)
    leaves = [weight.clone().requires_grad_() for weight in weights]
    buckets = data_parallel.GradientBuckets(leaves, bucket_bytes=5 * leaves[0].nbytes // 2)
    loss = mlp.loss(mlp.forward(leaves, shard))
    loss.backward()
    buckets.wait()
    gradients = [leaf.grad for leaf in leaves]
    return (
        named(gradients, loss=loss),
        _ddp(weights, shard),
        named(on_one_device(weights, shard)[2]),
    )


def tensor_columns(weights: list[Tensor], x: Tensor) -> Comparison:
    shards = [tensor_parallel.shard_columns(weight) for weight in weights]
    y, saved = tensor_parallel.tensor_parallel_forward(shards, x)
    grad_x, gradients = tensor_parallel.tensor_parallel_backward(
        shards, saved, mlp.loss_backward(y)
    )
    reference = named(gradients, y=y, grad_x=grad_x)
    own = [_only_mine(weight, 1) for weight in weights]
    return (
        reference,
        _tensor_parallel_torch(cut_by_columns(weights), x),
        _tensor_parallel_alone(own, x, [1] * LAYERS),
    )


def megatron_pairs(weights: list[Tensor], x: Tensor) -> Comparison:
    dims = [1, 0] * (LAYERS // 2)
    cut = [
        tensor_parallel.shard_columns(weight) if dim else tensor_parallel.shard_rows(weight)
        for weight, dim in zip(weights, dims)
    ]
    leaves = [leaf.requires_grad_() for leaf in cut]
    y = leaf_x = x.clone().requires_grad_()
    for column, row in zip(leaves[::2], leaves[1::2]):
        y = tensor_parallel.megatron_pair(column, row, y)
    mlp.loss(y).backward()
    reference = named([leaf.grad for leaf in leaves], y=y, grad_x=leaf_x.grad)
    own = [_only_mine(weight, dim) for weight, dim in zip(weights, dims)]
    return (
        reference,
        _tensor_parallel_torch(cut_in_pairs(weights), x),
        _tensor_parallel_alone(own, x, dims),
    )


def _tensor_parallel_torch(model: nn.Module, x: Tensor) -> Tensors:
    leaf = x.clone().requires_grad_()
    y = model(leaf)
    mlp.loss(y).backward()
    return named(torch_gradients(model), y=y, grad_x=leaf.grad)


def _only_mine(weight: Tensor, dim: int) -> Tensor:
    """Return the weight with zeros in place of the other ranks' shards.

    A layer with this weight computes as if there were no other ranks.
    """
    own = torch.zeros_like(weight)
    n, rank = dist.get_world_size(), dist.get_rank()
    own.chunk(n, dim)[rank].copy_(weight.chunk(n, dim)[rank])
    return own


def _tensor_parallel_alone(own: list[Tensor], x: Tensor, dims: list[int]) -> Tensors:
    y, grad_x, gradients = on_one_device(own, x)
    n, rank = dist.get_world_size(), dist.get_rank()
    return named([g.chunk(n, dim)[rank] for g, dim in zip(gradients, dims)], y=y, grad_x=grad_x)


def mesh_step(weights: list[Tensor], x: Tensor) -> Comparison:
    shape, dims = mesh_shape(), [1, 0] * (LAYERS // 2)
    data, tensor = device_mesh.coordinates(dist.get_rank(), shape)
    row, column = device_mesh.mesh_groups(shape)

    def own(whole: list[Tensor]) -> list[Tensor]:
        return [w.chunk(shape[1], dim)[tensor] for w, dim in zip(whole, dims)]

    cut, rows = own(weights), x.chunk(shape[0])[data]
    loss, pairs = device_mesh.mesh_step(list(zip(cut[::2], cut[1::2])), rows, row, column)
    reference = named([gradient for pair in pairs for gradient in pair], loss=loss)
    module = cut_on_mesh(weights)
    of_torch = mlp.loss(module(rows))
    of_torch.backward()
    full = [parameter.grad.full_tensor().T for parameter in module.parameters()]
    # Without communication a rank has its own rows, and only its shards of the weights.
    mine = [torch.zeros_like(weight) for weight in weights]
    for shard, zeros in zip(cut, own(mine)):
        zeros.copy_(shard)
    y, _, alone = on_one_device(mine, rows)
    return reference, named(own(full), loss=of_torch), named(own(alone))


def pipeline_passes(weights: list[Tensor], x: Tensor) -> Comparison:
    mine, first = my_stage(weights), x if dist.get_rank() == 0 else None
    y, saved = pipeline_parallel.pipeline_forward(mine, first, BATCH, MICRO_BATCHES)
    gradients = pipeline_parallel.pipeline_backward(mine, saved, y)
    step, module = torch_pipeline(ScheduleGPipe, mine, MICRO_BATCHES)
    torch_y, _ = step(x)
    # A stage alone uses the batch as its input, and its output counts as the model's output.
    return (
        named(gradients, y=y),
        named(torch_gradients(module), y=torch_y),
        named(on_one_device(mine, x)[2]),
    )


def gpipe(weights: list[Tensor], x: Tensor) -> Comparison:
    return _schedule(pipeline_parallel.gpipe_schedule, ScheduleGPipe, weights, x)


def one_forward_one_backward(weights: list[Tensor], x: Tensor) -> Comparison:
    return _schedule(pipeline_parallel.one_forward_one_backward_schedule, Schedule1F1B, weights, x)


def _schedule(make: Callable, torch_schedule: type, weights: list[Tensor], x: Tensor) -> Comparison:
    rank, mine = dist.get_rank(), my_stage(weights)
    schedule = make(rank, dist.get_world_size(), MICRO_BATCHES)
    first = x if rank == 0 else None
    loss, gradients = pipeline_parallel.run_schedule(
        schedule, mine, first, BATCH, MICRO_BATCHES, Timeline()
    )
    step, module = torch_pipeline(torch_schedule, mine, MICRO_BATCHES)
    _, torch_loss = step(x)
    return (
        named(gradients, loss=loss),
        named(torch_gradients(module), loss=torch_loss),
        named(on_one_device(mine, x)[2]),
    )


def torch_chunks(
    schedule: type, chunks: list[list[Tensor]], num_micro_batches: int
) -> tuple[Callable, list[nn.Module], list[list[chunked.Action]]]:
    """Return ``(step, modules, order)`` of this rank's chunks.

    Every rank calls ``step(x)``. It returns the loss on the last rank. ``order`` is torch's own
    schedule of every stage, in our actions.
    """
    rank, n, v = dist.get_rank(), dist.get_world_size(), len(chunks)
    modules = [torch_mlp(own) for own in chunks]
    stages = [
        PipelineStage(module, c * n + rank, v * n, torch.device("cpu"))
        for c, module in enumerate(modules)
    ]
    run = schedule(stages, num_micro_batches, loss_fn=lambda y, target: mlp.loss(y))

    def step(x: Tensor) -> Tensor | None:
        losses: list[Tensor] = []
        run.step(*[x] if rank == 0 else [], target=x if rank == n - 1 else None, losses=losses)
        return torch.stack(losses).mean() if rank == n - 1 else None

    names = {"FORWARD": "F", "BACKWARD_INPUT": "B", "BACKWARD_WEIGHT": "W", "FULL_BACKWARD": "BW"}
    order = [
        [
            (names[a.computation_type.name], a.stage_index // n, a.microbatch_index)
            for a in run.pipeline_order[stage]
            if a is not None
        ]
        for stage in range(n)
    ]
    return step, modules, order


def interleaved(weights: list[Tensor], x: Tensor) -> Comparison:
    return _chunked(2, ScheduleInterleaved1F1B, weights, x)


def zero_bubble(weights: list[Tensor], x: Tensor) -> Comparison:
    """Compare schedules with one stage on each rank. Then torch's schedule is ZB-H1."""
    return _chunked(1, ScheduleInterleavedZeroBubble, weights, x)


def made_schedules(v: int, num_micro_batches: int) -> list[list[schedules.Action]]:
    """Return our interleaved schedules of all stages; zero-bubble schedules if v is 1."""
    n = dist.get_world_size()
    return [
        (
            schedules.interleaved_schedule(stage, n, v, num_micro_batches)
            if v > 1
            else schedules.zero_bubble_schedule(stage, n, num_micro_batches)
        )
        for stage in range(n)
    ]


def _chunked(v: int, torch_schedule: type, weights: list[Tensor], x: Tensor) -> Comparison:
    rank, n = dist.get_rank(), dist.get_world_size()
    layers, many = (weights * 2)[: 2 * n], 2 * n
    cut = schedules.chunk_layers(2 * n, rank, n, v)
    chunks = [[layers[l] for l in own] for own in cut]
    made = made_schedules(v, many)
    halves = schedules.backward_input, schedules.backward_weights
    first = x if rank == 0 else None
    loss, of_chunks = schedule_runner.run_schedules(
        made, chunks, first, len(x), many, Timeline(), *halves
    )
    step, modules, order = torch_chunks(torch_schedule, chunks, many)
    torch_loss = step(x)
    of_torch = [gradient for module in modules for gradient in torch_gradients(module)]
    alone = [gradient for own in chunks for gradient in on_one_device(own, x)[2]]
    return (
        named([g for own in of_chunks for g in own], loss=loss, **_properties(made)),
        named(of_torch, loss=torch_loss, **_properties(order)),
        named(alone),
    )


def _properties(stages: list[list[chunked.Action]]) -> Tensors:
    """Return when schedules end, for some durations, and how much each stage keeps alive."""
    ends = []
    for f, b, w in ((1.0, 1.0, 1.0), (2.0, 3.0, 1.0), (1.0, 2.0, 3.0)):
        end = chunked.makespan(stages, {"F": f, "B": b, "W": w, "BW": b + w})
        assert not isinstance(end, str), end
        ends.append(end)
    alive = [float(chunked.most_alive(own)[0]) for own in stages]
    return {"ends": torch.tensor(ends), "alive": torch.tensor(alive)}


def zero(weights: list[Tensor], x: Tensor) -> Comparison:
    """Compare three steps on the same batch. The changes of the weights play the gradients."""
    shard, n = data_parallel.shard_batch(x), dist.get_world_size()
    own, theirs, alone = ([weight.clone() for weight in weights] for _ in range(3))
    mine = sharded_data_parallel.ZeroAdamW(own, lr=0.01)
    by_torch = ZeroRedundancyOptimizer(theirs, torch.optim.AdamW, lr=0.01)
    by_myself = torch.optim.AdamW(alone, lr=0.01)
    for _ in range(3):
        mine.step(on_one_device(own, shard)[2])
        for weight, gradient in zip(theirs, on_one_device(theirs, shard)[2]):
            dist.all_reduce(gradient)  # DDP does this before torch's optimizer makes its step
            weight.grad = gradient / n
        by_torch.step()
        for weight, gradient in zip(alone, on_one_device(alone, shard)[2]):
            weight.grad = gradient
        by_myself.step()
    return tuple(  # type: ignore[return-value]  # three of them
        named([b - a for a, b in zip(weights, after)]) for after in (own, theirs, alone)
    )


def torch_sharded(weights: list[Tensor]) -> nn.Module:
    """Return torch's FSDP model. Each layer is gathered alone, and freed after its forward pass."""
    module = torch_mlp(weights)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in module:
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    return fully_shard(module, mesh=mesh, reshard_after_forward=True)


def fully_sharded_step(weights: list[Tensor], x: Tensor) -> Comparison:
    return _sharded(sharded_data_parallel.fully_sharded_step, weights, x)


def prefetched_step(weights: list[Tensor], x: Tensor) -> Comparison:
    return _sharded(sharded_data_parallel.prefetched_step, weights, x)


def _sharded(step: Callable, weights: list[Tensor], x: Tensor) -> Comparison:
    rows, flat_shard = data_parallel.shard_batch(x), sharded_data_parallel.flat_shard
    loss, gradients = step([flat_shard([weight]) for weight in weights], rows)
    module = torch_sharded(weights)
    torch_loss = mlp.loss(module(rows))
    torch_loss.backward()
    full = [parameter.grad.full_tensor().T for parameter in module.parameters()]
    return (
        named(gradients, loss=loss),
        named([flat_shard([gradient]) for gradient in full], loss=torch_loss),
        named([flat_shard([gradient]) for gradient in on_one_device(weights, rows)[2]]),
    )


def difference(actual: Tensor, expected: Tensor) -> float:
    """Return the largest error, in units of the largest entry. Shape and dtype must be the same."""
    actual, expected = actual.detach(), expected.detach()
    assert (actual.shape, actual.dtype) == (expected.shape, expected.dtype), (
        actual.shape,
        expected.shape,
    )
    assert expected.abs().max() > 0
    return float((actual - expected).abs().max() / expected.abs().max())
