"""Compare the reference of part 9 with torch: long sequences and many experts. See ``oracles``."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.experimental._context_parallel import _attention as context_parallel
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from grader.selftest.oracles import LAYERS, Comparison, Tensors, named, torch_gradients, torch_mlp
from handout import mlp, normalization
from solutions import sequence_and_experts

# torch's attention on a CPU, with the logsumexp that its ring needs
ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
ATTENTION_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class ResidualPair(nn.Module):
    """Computes x + gelu(normalize(x) @ A) @ B."""

    def __init__(self, weights: list[Tensor]) -> None:
        super().__init__()
        width = len(weights[0])
        norm = nn.RMSNorm(width, eps=normalization.EPSILON, elementwise_affine=False)
        first, gelu, second, _ = torch_mlp(weights)
        self.pair = nn.Sequential(norm, first, gelu, second)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.pair(x)


def cut_by_tokens(weights: list[Tensor]) -> nn.Module:
    """Return torch's sequence parallelism for a pair: each rank gives and gets its own rows."""
    plan = {
        "0": SequenceParallel(sequence_dim=0),
        "1": ColwiseParallel(input_layouts=Shard(0)),
        "3": RowwiseParallel(output_layouts=Shard(0)),
    }
    module, mesh = ResidualPair(weights[:2]), init_device_mesh("cpu", (dist.get_world_size(),))
    parallelize_module(module.pair, mesh, plan)
    return module


def sequence_pair(weights: list[Tensor], x: Tensor) -> Comparison:
    """Compare the sequence-parallel pair with torch's SequenceParallel."""
    n, rank = dist.get_world_size(), dist.get_rank()
    own = x.chunk(n)[rank]
    pair = weights[0].chunk(n, 1)[rank], weights[1].chunk(n)[rank]
    found, saved = sequence_and_experts.sequence_parallel_forward(pair, own)
    grad_x, gradients = sequence_and_experts.sequence_parallel_backward(pair, saved, own)
    module, leaf = cut_by_tokens(weights), own.clone().requires_grad_()
    y = module(leaf)
    y.backward(own)
    # What the rank would get if its shards were all the weights, and its rows the whole sequence.
    alone = ResidualPair(list(pair))(own)
    return (
        named(gradients, y=found, x=grad_x),
        named(torch_gradients(module), y=y, x=leaf.grad),
        {"y": alone},
    )


def ring_attention(weights: list[Tensor], x: Tensor) -> Comparison:
    return _attention(weights, x, causal=False)


def causal_ring_attention(weights: list[Tensor], x: Tensor) -> Comparison:
    return _attention(weights, x, causal=True)


def _attention(weights: list[Tensor], x: Tensor, causal: bool) -> Comparison:
    """Compare ring attention with torch's attention and autograd on the whole sequence."""
    n, rank = dist.get_world_size(), dist.get_rank()
    whole = [(x @ weight).requires_grad_() for weight in weights[:3]]
    attend = nn.functional.scaled_dot_product_attention
    output = attend(*(t[None] for t in whole), is_causal=causal)[0]
    output.backward(x)
    own = [t.detach().chunk(n)[rank] for t in whole]
    found, logsumexp = sequence_and_experts.ring_attention_forward(*own, causal)
    gradients = sequence_and_experts.ring_attention_backward(
        *own, found, logsumexp, x.chunk(n)[rank], causal
    )
    return (
        named(list(gradients), output=found),
        named([t.grad.chunk(n)[rank] for t in whole], output=output.chunk(n)[rank]),
        _attention_alone(own, x.chunk(n)[rank], causal),
    )


def _attention_alone(own: list[Tensor], upstream: Tensor, causal: bool) -> Tensors:
    """Return an output or a gradient of a rank's attention to its own block alone.

    With the other ranks' blocks, this tensor is different.
    """
    leaves = [t.clone().requires_grad_() for t in own]
    output = nn.functional.scaled_dot_product_attention(
        *(t[None] for t in leaves), is_causal=causal
    )[0]
    output.backward(upstream)
    # If attention is causal, rank 0's output does not depend on other ranks. But its keys affect
    # their outputs.
    is_first = causal and dist.get_rank() == 0
    return {"gradient of layer 1": leaves[1].grad} if is_first else {"output": output}


@contextmanager
def _as_in_part_9() -> Iterator[None]:
    """Let torch's ring keep the order of the tokens, and compute in the dtype of its inputs."""
    options = {"enable_load_balance": False, "convert_to_f32": False}
    with mock.patch.multiple(context_parallel._cp_options, **options):
        yield


def torch_ring(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Return ``(output, logsumexp)`` of torch's ring of context parallelism."""

    def attend(*blocks: Tensor, is_causal: bool) -> tuple[Tensor, Tensor]:
        return ATTENTION(*blocks, 0.0, is_causal)

    blocks = (t[None, None] for t in (q, k, v))  # one batch with one head
    with _as_in_part_9():
        output, logsumexp = context_parallel._templated_ring_attention(
            dist.group.WORLD, 2, attend, *blocks, is_causal=causal
        )
    return output[0, 0], logsumexp.flatten()


def torch_ring_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    logsumexp: Tensor,
    grad_output: Tensor,
    causal: bool,
) -> list[Tensor]:
    def differentiate(*, is_causal: bool, **given: Tensor) -> tuple[Tensor, ...]:
        names = "grad_out", "query", "key", "value", "out", "logsumexp"
        return ATTENTION_BACKWARD(*(given[name] for name in names), 0.0, is_causal)

    gradient, query, key, value, out = (t[None, None] for t in (grad_output, q, k, v, output))
    tensors = gradient, "grad_out", query, key, value, out, logsumexp[None, None]
    with _as_in_part_9():
        found = context_parallel._templated_ring_attention_backward(
            dist.group.WORLD, 2, differentiate, *tensors, causal
        )
    return [gradient[0, 0] for gradient in found]


def context_parallel_ring(weights: list[Tensor], x: Tensor) -> Comparison:
    return _rings(weights, x, causal=False)


def causal_context_parallel_ring(weights: list[Tensor], x: Tensor) -> Comparison:
    return _rings(weights, x, causal=True)


def _rings(weights: list[Tensor], x: Tensor, causal: bool) -> Comparison:
    """Compare ring attention with torch's ring. Both return the logsumexp."""
    n, rank = dist.get_world_size(), dist.get_rank()
    q, k, v = ((x @ weight).chunk(n)[rank] for weight in weights[:3])
    upstream = x.chunk(n)[rank]

    def run(forward: Callable, backward: Callable) -> dict[str, Tensor]:
        output, logsumexp = forward(q, k, v, causal)
        gradients = backward(q, k, v, output, logsumexp, upstream, causal)
        return named(list(gradients), output=output, logsumexp=logsumexp)

    reference = run(
        sequence_and_experts.ring_attention_forward, sequence_and_experts.ring_attention_backward
    )
    by_torch = run(torch_ring, torch_ring_backward)
    return reference, by_torch, _attention_alone([q, k, v], upstream, causal)


def autograd_mixture(gate: Tensor, weights: list[Tensor], x: Tensor) -> Tensor:
    """Return the mixture with torch's all-to-all, which autograd runs backward."""
    n, each = dist.get_world_size(), len(weights)
    p, choice = (x @ gate).softmax(1).max(1, keepdim=True)
    order = choice.flatten().argsort(stable=True)
    counts = choice.flatten().bincount(minlength=n * each)
    incoming = torch.empty_like(counts)
    dist.all_to_all_single(incoming, counts)
    sent, received = (c.view(n, each).sum(1).tolist() for c in (counts, incoming))
    arrived = all_to_all_single_autograd(x[order], received, sent, dist.group.WORLD)
    by_expert = torch.arange(each).repeat(n).repeat_interleave(incoming).argsort(stable=True)
    groups = arrived[by_expert].split(incoming.view(n, each).sum(0).tolist())
    results = torch.cat([nn.functional.gelu(rows @ w) for rows, w in zip(groups, weights)])
    back = all_to_all_single_autograd(
        results[by_expert.argsort()], sent, received, dist.group.WORLD
    )
    return p * back[order.argsort()]


def mixture(weights: list[Tensor], x: Tensor) -> Comparison:
    """Compare the mixture with a dense one: every expert computes every token."""
    n, rank = dist.get_world_size(), dist.get_rank()
    experts = torch.stack([weights[i % LAYERS] * (1 + i / 9) for i in range(2 * n)])
    experts.requires_grad_()
    gate = weights[5][:, : 2 * n].clone().requires_grad_()
    whole = x.clone().requires_grad_()
    probabilities = (whole @ gate).softmax(1)
    everything = nn.functional.gelu(torch.einsum("tk,ekj->tej", whole, experts))
    top = nn.functional.one_hot(probabilities.argmax(1), 2 * n)
    y = (everything * (probabilities * top)[:, :, None]).sum(1)
    y.backward(x)
    own, held = x.chunk(n)[rank], list(experts.detach()[2 * rank :][:2])
    found, saved = sequence_and_experts.mixture_forward(gate.detach(), held, own)
    grad_x, of_gate, of_held = sequence_and_experts.mixture_backward(
        gate.detach(), held, saved, own
    )
    own_logits = own @ gate.detach()[:, 2 * rank :][:, :2]  # as if there were no other experts
    p, choice = own_logits.softmax(1).max(1, keepdim=True)
    rows = [mlp.layer_forward(token[None], held[i])[0] for token, i in zip(own, choice.flatten())]
    held_only = p * torch.cat(rows)
    return (
        named([*of_held], y=found, x=grad_x, gate=of_gate),
        named(
            [*experts.grad[2 * rank :][:2]],
            y=y.chunk(n)[rank],
            x=whole.grad.chunk(n)[rank],
            gate=gate.grad,
        ),
        {"y": held_only},
    )
