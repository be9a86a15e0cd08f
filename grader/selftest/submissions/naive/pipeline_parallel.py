import torch
import torch.distributed as dist
from torch import Tensor

from handout import mlp
from handout.timeline import Span, Timeline

Action = tuple[str, int]
Saved = list[tuple[Tensor, Tensor]]


def split_layers(num_layers: int, num_stages: int) -> list[range]:
    if num_stages < 1 or num_stages > num_layers:
        raise ValueError(f"{num_layers} layers cannot be cut into {num_stages} stages")
    stages = []
    start = 0
    for s in range(num_stages):
        size = num_layers // num_stages
        if s < num_layers % num_stages:
            size += 1
        stages.append(range(start, start + size))
        start += size
    return stages


def check_batch(batch_size, num_micro_batches):
    if num_micro_batches < 1 or batch_size % num_micro_batches != 0:
        raise ValueError(
            f"a batch of {batch_size} does not divide into {num_micro_batches} micro-batches"
        )


def forward_through_stage(weights, x):
    saved = []
    for weight in weights:
        y, z = mlp.layer_forward(x, weight)
        saved.append((x, z))
        x = y
    return x, saved


def backward_through_stage(weights, saved, grad, gradients):
    for layer in range(len(weights) - 1, -1, -1):
        x, z = saved[layer]
        grad, grad_weight = mlp.layer_backward(x, z, weights[layer], grad)
        gradients[layer] += grad_weight
    return grad


def receive(weights, rows, source):
    buffer = torch.empty(
        rows, weights[0].shape[0], dtype=weights[0].dtype, device=weights[0].device
    )
    dist.recv(buffer, source)
    return buffer


def zero_gradients(weights):
    return [torch.zeros(w.shape, dtype=w.dtype, device=w.device) for w in weights]


def pipeline_forward(
    weights: list[Tensor], x: Tensor | None, batch_size: int, num_micro_batches: int
) -> tuple[Tensor | None, list[Saved]]:
    check_batch(batch_size, num_micro_batches)
    n = dist.get_world_size()
    s = dist.get_rank()
    rows = batch_size // num_micro_batches
    outputs = []
    saved = []
    for i in range(num_micro_batches):
        if s == 0:
            inp = x[i * rows : (i + 1) * rows]
        else:
            inp = receive(weights, rows, s - 1)
        y, of_micro_batch = forward_through_stage(weights, inp)
        saved.append(of_micro_batch)
        if s == n - 1:
            outputs.append(y)
        else:
            dist.send(y.contiguous(), s + 1)
    if s == n - 1:
        return torch.cat(outputs), saved
    return None, saved


def pipeline_backward(weights: list[Tensor], saved: list[Saved], y: Tensor | None) -> list[Tensor]:
    n = dist.get_world_size()
    s = dist.get_rank()
    gradients = zero_gradients(weights)
    if s == n - 1:
        grad_y = mlp.loss_backward(y)
    for i in range(len(saved)):
        rows = saved[i][0][0].shape[0]
        if s == n - 1:
            grad = grad_y[i * rows : (i + 1) * rows]
        else:
            grad = receive(weights, rows, s + 1)
        grad = backward_through_stage(weights, saved[i], grad, gradients)
        if s > 0:
            dist.send(grad.contiguous(), s - 1)
    return gradients


def check_schedule_arguments(stage, num_stages, num_micro_batches):
    if stage < 0 or stage >= num_stages:
        raise ValueError(f"stage {stage} is not one of {num_stages} stages")
    if num_micro_batches < 1:
        raise ValueError(f"there must be a micro-batch, not {num_micro_batches}")


def gpipe_schedule(stage: int, num_stages: int, num_micro_batches: int) -> list[Action]:
    check_schedule_arguments(stage, num_stages, num_micro_batches)
    actions = []
    for i in range(num_micro_batches):
        actions.append(("forward", i))
    for i in range(num_micro_batches):
        actions.append(("backward", i))
    return actions


def one_forward_one_backward_schedule(
    stage: int, num_stages: int, num_micro_batches: int
) -> list[Action]:
    check_schedule_arguments(stage, num_stages, num_micro_batches)
    warm_up = min(num_stages - stage - 1, num_micro_batches)
    actions = []
    for i in range(warm_up):
        actions.append(("forward", i))
    done = 0
    for i in range(warm_up, num_micro_batches):
        actions.append(("forward", i))
        actions.append(("backward", done))
        done += 1
    for i in range(done, num_micro_batches):
        actions.append(("backward", i))
    return actions


def send_and_receive(tensor, target, weights, rows, source):
    """Start both in one batch, and wait for the receive. None: there is no such stage."""
    operations, buffer, sending = [], None, None
    if target is not None:
        operations.append(dist.P2POp(dist.isend, tensor.contiguous(), target))
    if source is not None:
        buffer = torch.empty(
            rows, weights[0].shape[0], dtype=weights[0].dtype, device=weights[0].device
        )
        operations.append(dist.P2POp(dist.irecv, buffer, source))
    works = dist.batch_isend_irecv(operations) if operations else []
    if target is not None:
        sending = works[0]
    if source is not None:
        works[-1].wait()
    return sending, buffer


def run_schedule(
    schedule: list[Action],
    weights: list[Tensor],
    x: Tensor | None,
    batch_size: int,
    num_micro_batches: int,
    timeline: Timeline,
) -> tuple[Tensor | None, list[Tensor]]:
    m = num_micro_batches
    check_batch(batch_size, m)
    wanted = [("forward", i) for i in range(m)] + [("backward", i) for i in range(m)]
    if sorted(schedule) != sorted(wanted):
        raise ValueError(f"a schedule of {len(schedule)} actions for {m} micro-batches")
    n = dist.get_world_size()
    s = dist.get_rank()
    rows = batch_size // m
    gradients = zero_gradients(weights)
    loss = None
    saved = {}
    outputs = {}  # only on the last stage
    sends = {}  # forward sends that the next stage may not have received yet
    # the stage that each action receives from, and that it sends to
    before = s - 1 if s > 0 else None
    after = s + 1 if s < n - 1 else None
    sources = [before if kind == "forward" else after for kind, i in schedule] + [None]
    _, received = send_and_receive(None, None, weights, rows, sources[0])
    for k in range(len(schedule)):
        kind, i = schedule[k]
        if kind == "forward":
            if s == 0:
                inp = x[i * rows : (i + 1) * rows]
            else:
                inp = received
            with timeline.span("forward", i):
                y, saved[i] = forward_through_stage(weights, inp)
                if s == n - 1:
                    part = mlp.loss(y) / m
                    loss = part if loss is None else loss + part
            if s == n - 1:
                outputs[i] = y
            sends[i], received = send_and_receive(y, after, weights, rows, sources[k + 1])
            del inp, y
        else:
            if s == n - 1:
                grad = None
            else:
                grad = received
                sends.pop(i).wait()  # its gradient is back, so it has arrived
            with timeline.span("backward", i):
                if s == n - 1:
                    grad = mlp.loss_backward(outputs.pop(i)) / m
                grad = backward_through_stage(weights, saved.pop(i), grad, gradients)
            sending, received = send_and_receive(grad, before, weights, rows, sources[k + 1])
            if s > 0:
                sending.wait()
            del grad, sending
    return loss, gradients


def bubble_fraction(num_stages: int, num_micro_batches: int) -> float:
    if num_stages < 1 or num_micro_batches < 1:
        raise ValueError(
            f"there must be a stage and a micro-batch, not {num_stages} and {num_micro_batches}"
        )
    return (num_stages - 1) / (num_micro_batches + num_stages - 1)


def measured_bubble(timelines: list[list[Span]]) -> float:
    spans = []
    for of_stage in timelines:
        for span in of_stage:
            spans.append(span)
    if len(spans) == 0:
        raise ValueError(f"none of the {len(timelines)} stages recorded a span")
    start = min(span.start for span in spans)
    end = max(span.end for span in spans)
    total = (end - start) * len(timelines)
    if total == 0:
        return 0.0
    busy = sum(span.end - span.start for span in spans)
    return max(0.0, (total - busy) / total)
