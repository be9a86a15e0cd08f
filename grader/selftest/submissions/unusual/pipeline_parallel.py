# Unusual: receives posted ahead with tags into slabs of one buffer, last micro-batch first in the
# backward pass, weight gradients only after the input gradient is on its way, batch_isend_irecv, an
# executor that prefetches the next action's receive, in a group for each direction between two
# neighbours, and lets a thread per neighbour wait for the sends.
import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise

import torch
import torch.distributed as dist
import torch.nn.functional as F

from handout import mlp

gelu_backward = torch.ops.aten.gelu_backward


def split_layers(num_layers, num_stages):
    if not 1 <= num_stages <= num_layers:
        raise ValueError(f"{num_layers} layers cannot be cut into {num_stages} stages")
    # as cards are
    dealt = [len(range(stage, num_layers, num_stages)) for stage in range(num_stages)]
    return [range(*ends) for ends in pairwise(accumulate(dealt, initial=0))]


def _rows(batch_size, num_micro_batches):
    if num_micro_batches < 1 or batch_size % num_micro_batches:
        raise ValueError(
            f"a batch of {batch_size} does not divide into {num_micro_batches} micro-batches"
        )
    return batch_size // num_micro_batches


def _forward(weights, x):
    saved = []
    for weight in weights:
        z = torch.mm(x, weight)
        saved.append((x, z))
        x = F.gelu(z)
    return x.contiguous(), saved


def _input_gradient(weights, saved, grad, needed):
    """The gradient of the input (None if not needed), and the gradients of all z, for the weights'
    gradients later.
    """
    grad_zs = []
    for layer in reversed(range(len(weights))):
        grad_zs.append(gelu_backward(grad, saved[layer][1]))
        grad = grad_zs[-1] @ weights[layer].T if layer or needed else None
    return (grad.contiguous() if needed else None), grad_zs[::-1]


def _add_weight_gradients(totals, saved, grad_zs):
    for total, (x, _), grad_z in zip(totals, saved, grad_zs, strict=True):
        total.addmm_(x.T, grad_z)


def _zeros(weights):
    return [torch.zeros(w.shape, dtype=w.dtype, device=w.device) for w in weights]


@torch.no_grad()
def pipeline_forward(weights, x, batch_size, num_micro_batches):
    b, m = _rows(batch_size, num_micro_batches), num_micro_batches
    s, n, width = dist.get_rank(), dist.get_world_size(), weights[0].shape[0]
    entrance = x if s == 0 else weights[0].new_empty(batch_size, width)
    slabs = [entrance.narrow(0, i * b, b) for i in range(m)]
    arriving = [dist.irecv(slab, s - 1, tag=i) for i, slab in enumerate(slabs)] if s else [None] * m
    exit_ = weights[0].new_empty(batch_size, width)  # what goes out, or the output
    saved, leaving = [], []
    for i in range(m):
        if arriving[i] is not None:
            arriving[i].wait()
        y, of_batch = _forward(weights, slabs[i])
        saved.append(of_batch)
        out = exit_.narrow(0, i * b, b).copy_(y)
        if s < n - 1:
            leaving += dist.batch_isend_irecv([dist.P2POp(dist.isend, out, s + 1, tag=i)])
    for work in leaving:
        work.wait()
    return (exit_ if s == n - 1 else None), saved


@torch.no_grad()
def pipeline_backward(weights, saved, y):
    s, n, m = dist.get_rank(), dist.get_world_size(), len(saved)
    last, b, width = s == n - 1, saved[0][0][0].shape[0], weights[0].shape[0]
    grads = (mlp.loss_backward(y) if last else weights[0].new_empty(m * b, width)).split(b)
    totals, works, arriving = _zeros(weights), [], None
    if not last:
        (arriving,) = dist.batch_isend_irecv(
            [dist.P2POp(dist.irecv, grads[m - 1], s + 1, tag=m - 1)]
        )
    for i in reversed(range(m)):
        if arriving is not None:
            arriving.wait()
        grad_x, grad_zs = _input_gradient(weights, saved[i], grads[i], needed=s > 0)
        exchange = [dist.P2POp(dist.isend, grad_x, s - 1, tag=i)] if s else []
        if i and not last:
            exchange.append(dist.P2POp(dist.irecv, grads[i - 1], s + 1, tag=i - 1))
        begun = dist.batch_isend_irecv(exchange) if exchange else []
        arriving = begun.pop() if i and not last else None
        works += begun  # the sends; a receive must not be waited for twice, on gloo that hangs
        _add_weight_gradients(totals, saved[i], grad_zs)  # while the gradient is on its way
    for work in works:
        work.wait()
    return totals


def _check_stage(stage, num_stages, num_micro_batches):
    if not 0 <= stage < num_stages:
        raise ValueError(f"stage {stage} is not one of {num_stages} stages")
    if num_micro_batches < 1:
        raise ValueError(f"there must be a micro-batch, not {num_micro_batches}")


def gpipe_schedule(stage, num_stages, num_micro_batches):
    _check_stage(stage, num_stages, num_micro_batches)
    forward = [("forward", i) for i in range(num_micro_batches)]
    backward = [("backward", i) for i in range(num_micro_batches)]
    return forward + backward[::-1]


def one_forward_one_backward_schedule(stage, num_stages, num_micro_batches):
    _check_stage(stage, num_stages, num_micro_batches)
    # backward i just before forward i + n − s
    lag = {"forward": 0, "backward": num_stages - stage - 0.5}
    actions = [(kind, i) for kind in lag for i in range(num_micro_batches)]
    return sorted(actions, key=lambda action: action[1] + lag[action[0]])


_channels = {}  # (sender, receiver) → their group: no message waits behind a prefetch of another


def _open_channels():
    links = list(pairwise(range(dist.get_world_size())))
    for link in links + [link[::-1] for link in links]:
        if link not in _channels:
            _channels[link] = dist.new_group(sorted(link))


def _finish(work, tensor):
    # on gloo only this tells that it has arrived: is_completed() stays False
    work.wait()


@torch.no_grad()
def run_schedule(schedule, weights, x, batch_size, num_micro_batches, timeline):
    b, m = _rows(batch_size, num_micro_batches), num_micro_batches
    if Counter(map(tuple, schedule)) != Counter(
        (kind, i) for kind in ("forward", "backward") for i in range(m)
    ):
        raise ValueError(f"a schedule of {len(schedule)} actions for {m} micro-batches")
    s, n, width = dist.get_rank(), dist.get_world_size(), weights[0].shape[0]
    totals = _zeros(weights)
    loss = weights[0].new_zeros(()) if s == n - 1 else None
    alive, last_grad, inbox = {}, {}, {}
    step = {"forward": 1, "backward": -1}
    _open_channels()

    def neighbour(kind, sign):
        peer = s + sign * step[kind]
        return peer if 0 <= peer < n else None

    def prefetch(action):
        source = neighbour(action[0], -1)
        if source is not None and action not in inbox:
            buffer = weights[0].new_empty(b, width)
            inbox[action] = (
                buffer,
                dist.irecv(
                    buffer,
                    source,
                    group=_channels[source, s],
                    tag=2 * action[1] + (action[0] == "backward"),
                ),
            )

    def receive(action):
        prefetch(action)
        buffer, work = inbox.pop(action)
        work.wait()
        return buffer

    def send(kind, i, tensor):
        target = neighbour(kind, 1)
        if target is not None:
            tag = 2 * i + (kind == "backward")
            work = dist.isend(tensor, target, group=_channels[s, target], tag=tag)
            sent.append(reapers[kind].submit(_finish, work, tensor))

    def forward(i):
        nonlocal loss
        rows = x.narrow(0, i * b, b) if s == 0 else receive(("forward", i))
        with timeline.span("forward", i):
            y, alive[i] = _forward(weights, rows)
            if s == n - 1:
                loss += mlp.loss(y) / m
                last_grad[i] = mlp.loss_backward(y) / m
        send("forward", i, y)

    def backward(i):
        grad = last_grad.pop(i) if s == n - 1 else receive(("backward", i))
        with timeline.span("backward", i):
            saved = alive.pop(i)
            grad_x, grad_zs = _input_gradient(weights, saved, grad, needed=s > 0)
            send("backward", i, grad_x)  # begins here, waits nowhere
            _add_weight_gradients(totals, saved, grad_zs)

    actions, sent = [tuple(action) for action in schedule], []
    with ThreadPoolExecutor(1) as to_next, ThreadPoolExecutor(1) as to_previous:
        reapers = {"forward": to_next, "backward": to_previous}
        for now, (kind, i) in enumerate(actions):
            prefetch(actions[now])
            if now + 1 < len(actions):
                prefetch(actions[now + 1])
            {"forward": forward, "backward": backward}[kind](i)
    for future in sent:
        future.result()
    return loss, totals


def bubble_fraction(num_stages, num_micro_batches):
    if num_stages < 1 or num_micro_batches < 1:
        raise ValueError(
            f"no pipeline of {num_stages} stages and {num_micro_batches} micro-batches"
        )
    return 1 - num_micro_batches / (num_micro_batches + num_stages - 1)


def measured_bubble(timelines):
    events = sorted(
        event
        for spans in timelines
        for span in spans
        for event in ((span.start, 1), (span.end, -1))
    )
    if not events:
        raise ValueError(f"none of {len(timelines)} stages recorded a span")
    busy = accumulate(change for _, change in events)  # how many stages work after each event
    idle = math.fsum(
        (len(timelines) - k) * (b[0] - a[0]) for k, (a, b) in zip(busy, pairwise(events))
    )
    total = len(timelines) * (events[-1][0] - events[0][0])
    return idle / total if total else 0.0
