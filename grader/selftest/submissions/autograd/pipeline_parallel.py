# Unusual: autograd inside a stage (a graph per alive micro-batch, held by its gradient edge alone);
# no tags, no threads: the receive of a gradient is posted as its activation is sent, so that
# gradients can be sent and waited for at once. It is posted in a group of the two neighbours, where
# no activation waits behind it.
from collections import deque

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.autograd.graph import get_gradient_edge

from handout import mlp


def split_layers(num_layers, num_stages):
    if num_stages < 1 or num_stages > num_layers:
        raise ValueError(f"{num_layers} layers cannot be cut into {num_stages} stages")
    chunks = torch.arange(num_layers).tensor_split(num_stages)
    return [range(int(chunk[0]), int(chunk[-1]) + 1) for chunk in chunks]


def _check(batch_size, m):
    if m < 1 or batch_size % m:
        raise ValueError(f"a batch of {batch_size} does not divide into {m} micro-batches")


_gradient_groups = {}  # the later stage of two neighbours → their group


def _groups_for_gradients():
    for later in range(1, dist.get_world_size()):
        if later not in _gradient_groups:
            _gradient_groups[later] = dist.new_group([later - 1, later])
    return _gradient_groups


def _start_receive(weights, rows, source, group=None):
    buffer = torch.empty(rows, weights[0].size(0), dtype=weights[0].dtype, device=weights[0].device)
    return buffer, dist.irecv(buffer, source, group=group)


def _arrived(pair):
    pair[1].wait()
    return pair[0]


def pipeline_forward(weights, x, batch_size, num_micro_batches):
    _check(batch_size, num_micro_batches)
    s, n, rows = dist.get_rank(), dist.get_world_size(), batch_size // num_micro_batches
    pending = [_start_receive(weights, rows, s - 1) for _ in range(num_micro_batches)] if s else []
    inputs = map(_arrived, pending) if s else iter(x.detach().tensor_split(num_micro_batches))
    outputs, saved, sends = [], [], []
    with torch.no_grad():
        for h in inputs:
            saved.append([])
            for w in weights:
                saved[-1].append((h, F.linear(h, w.T)))
                h = F.gelu(saved[-1][-1][1]).contiguous()
            outputs.append(h)
            sends += [dist.isend(h, s + 1)] if s + 1 < n else []
    [send.wait() for send in sends]
    return (torch.vstack(outputs) if s + 1 == n else None), saved


def _leaf(tensor):
    return tensor.detach().requires_grad_()


def pipeline_backward(weights, saved, y):
    s, n, m = dist.get_rank(), dist.get_world_size(), len(saved)
    rows, leaves, sends = saved[0][0][0].size(0), [_leaf(w) for w in weights], []
    if s + 1 < n:
        grads = map(_arrived, [_start_receive(weights, rows, s + 1) for _ in range(m)])
    else:
        leaf = _leaf(y)
        with torch.enable_grad():
            grads = iter(torch.autograd.grad(mlp.loss(leaf), leaf)[0].tensor_split(m))
    for pairs, grad in zip(saved, grads, strict=True):
        for leaf, (x, z) in zip(reversed(leaves), reversed(pairs), strict=True):
            with torch.enable_grad():
                x, z = _leaf(x), _leaf(z)
                (grad_z,) = torch.autograd.grad(F.gelu(z), z, grad)
                torch.autograd.backward(F.linear(x, leaf.T), grad_z)  # adds to leaf.grad
            grad = x.grad.contiguous()
        sends += [(dist.isend(grad, s - 1), grad)] if s else []
    [send.wait() for send, _ in sends]
    return [leaf.grad for leaf in leaves]


def gpipe_schedule(stage, num_stages, num_micro_batches):
    if stage not in range(num_stages) or num_micro_batches < 1:
        raise ValueError(
            f"no schedule for stage {stage} of {num_stages} and {num_micro_batches} micro-batches"
        )
    return [(kind, i) for kind in ("forward", "backward") for i in range(num_micro_batches)]


def one_forward_one_backward_schedule(stage, num_stages, num_micro_batches):
    forward, backward = (
        deque(half) for half in _halves(gpipe_schedule(stage, num_stages, num_micro_batches))
    )
    actions = []
    while backward:  # greedy: a forward pass whenever one more may be alive
        may = forward and len(backward) - len(forward) < num_stages - stage
        actions.append((forward if may else backward).popleft())
    return actions


def _halves(actions):
    return actions[: len(actions) // 2], actions[len(actions) // 2 :]


def run_schedule(schedule, weights, x, batch_size, num_micro_batches, timeline):
    _check(batch_size, num_micro_batches)
    everything = [(kind, i) for kind in ("backward", "forward") for i in range(num_micro_batches)]
    if sorted(map(tuple, schedule)) != everything:
        raise ValueError(
            f"a schedule of {len(schedule)} actions for {num_micro_batches} micro-batches"
        )
    s = dist.get_rank()
    n = dist.get_world_size()
    m = num_micro_batches
    rows = batch_size // num_micro_batches
    leaves, alive, losses = [_leaf(w) for w in weights], {}, []
    groups = _groups_for_gradients()
    # posted receives of gradients: buffers are alike, so first posted is first filled
    coming = deque()
    going = deque()  # the activation that was sent last, until it is known to have arrived

    def forward(i):
        h = (
            x.detach()[i * rows : (i + 1) * rows]
            if s == 0
            else _arrived(_start_receive(weights, rows, s - 1))
        )
        with timeline.span("forward", i), torch.enable_grad():
            start = h = h.requires_grad_() if s else h
            for leaf in leaves:
                h = F.gelu(F.linear(h, leaf.T))
            if s + 1 == n:
                h = mlp.loss(h) / m
                losses.append(h.detach())
            alive[i] = (get_gradient_edge(h), start if s else None)
            h = h.detach().contiguous()
        if s + 1 < n:
            settle()
            coming.append(_start_receive(weights, rows, s + 1, groups[s + 1]))
            going.append((dist.isend(h, s + 1), h))

    def settle():
        while going:
            going.popleft()[0].wait()

    def backward(i):
        grad = _arrived(coming.popleft()) if s + 1 < n else torch.ones_like(losses[0])
        # what was sent has arrived, or will: the next stage never waits for this one to receive it
        settle()
        with timeline.span("backward", i):
            edge, start = alive.pop(i)
            inputs = leaves + ([start] if s else [])
            found = torch.autograd.grad([edge], inputs, [grad])
            for leaf, gradient in zip(leaves, found):
                leaf.grad = gradient if leaf.grad is None else leaf.grad.add_(gradient)
        if s:
            # its receive was posted long ago
            dist.isend(found[-1].contiguous(), s - 1, group=groups[s]).wait()

    for kind, i in schedule:
        forward(i) if kind == "forward" else backward(i)
    settle()
    return (torch.stack(losses).sum() if s + 1 == n else None), [leaf.grad for leaf in leaves]


def bubble_fraction(num_stages, num_micro_batches):
    if min(num_stages, num_micro_batches) < 1:
        raise ValueError(
            f"{num_stages} stages and {num_micro_batches} micro-batches make no pipeline"
        )
    return (num_stages - 1) / (num_stages - 1 + num_micro_batches)


def measured_bubble(timelines):
    starts, ends = ([span[k] for spans in timelines for span in spans] for k in (2, 3))
    if not starts:
        raise ValueError(f"none of {len(timelines)} stages recorded a span")
    total = len(timelines) * (max(ends) - min(starts))
    return max(0.0, 1 - (sum(ends) - sum(starts)) / total) if total else 0.0
