"""Part 4 · Tensor parallelism (20 points): every rank has the whole batch and a part of every weight.

    make test PART=tensor_parallel                              judge this file
    python -m handout.run tensor_parallel --world-size 4        watch four ranks share one model

A matrix product can be cut in two ways. By columns of W, every rank computes its own columns of the result:

    x @ [W₀ W₁] = [x @ W₀   x @ W₁]                 (the parts stand side by side: all-gather)

By rows of W, every rank has its own columns of x, and computes one term of a sum:

    [x₀ x₁] @ [W₀; W₁] = x₀ @ W₀ + x₁ @ W₁          (the parts add up: all-reduce, or reduce-scatter)

The transposed product of the backward pass turns one into the other: where the forward pass gathers, the backward pass
adds up and deals out, and where one copies, the other adds. No rank ever holds a whole weight, nor its gradient.

``n = dist.get_world_size()``, ``rank = dist.get_rank()``. For every function here:
- inputs keep their values, may be non-contiguous, and are float32 or float64; results have their dtype;
- it works for 1, 2, 3, 4, … ranks, for one layer or more, and when it is called twice;
- misuse, which is the same on every rank, raises ``ValueError`` with a message that holds the numbers, before anything is
  sent.

Traffic is counted by what the best algorithm of a collective makes a rank send: for S bytes in all, 2(n−1)/n·S for an
all-reduce, half of that for a reduce-scatter of S or for an all-gather of parts that make S. Use any collectives
you like, and any ``mlp`` function that also works on a shard.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx

from handout import mlp


def shard_columns(weight: Tensor) -> Tensor:
    """Problem 4.1 · This rank's columns of a weight. Nothing is communicated.

    Args:
        weight: (I, O), the same on every rank.
    Returns:
        (I, O/n): columns [rank·O/n, (rank+1)·O/n), contiguous, in memory of its own. A view would keep the whole weight
        alive, and n ranks would save nothing. ``contiguous()`` of a view may still be that view, and ``clone()`` of a
        transpose is still transposed: one of them alone is not enough.
    Raises:
        ValueError: O does not divide by n ("10 columns do not divide by 4 ranks").

    With 2 ranks and [[1, 2], [3, 4]]:  rank 0 [[1], [3]], rank 1 [[2], [4]].
    About 5 lines.
    """
    raise NotImplementedError("Problem 4.1: shard_columns")


def shard_rows(weight: Tensor) -> Tensor:
    """Problem 4.1 · This rank's rows of a weight. Nothing is communicated.

    Args:
        weight: (I, O), the same on every rank.
    Returns:
        (I/n, O): rows [rank·I/n, (rank+1)·I/n), contiguous, in memory of its own.
    Raises:
        ValueError: I does not divide by n ("10 rows do not divide by 4 ranks").

    With 2 ranks and [[1, 2], [3, 4]]:  rank 0 [[1, 2]], rank 1 [[3, 4]].
    About 5 lines.
    """
    raise NotImplementedError("Problem 4.1: shard_rows")


def tensor_parallel_forward(shards: list[Tensor], x: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Problem 4.2 · Forward through L layers, each cut by columns: x[l+1] = gelu(x[l] @ W[l]).

    Every rank computes its columns of a layer's output; an all-gather makes the next layer's whole input of them. Gelu works on
    each entry alone, so it may come before the gather.

    Args:
        shards: L tensors of shape (D, D/n), this rank's columns of each weight.
        x: (B, D), the whole batch, the same on every rank.
    Returns:
        ``(y, saved)``: y, (B, D), the whole output, on every rank; and for each layer what its backward pass needs,
        ``(x, z)``: its whole input, (B, D), and this rank's columns of x @ W, (B, D/n), in memory of that size: a view of the
        whole x @ W would keep n times as much alive.
    Raises:
        ValueError: a shard does not have as many rows as ``x`` has columns, D; or its columns, times n, are not D ("4 shards
            of 2 columns do not make a weight of 4").

    Traffic: for each layer one all-gather that makes its (B, D) output, to which each rank adds its own (B, D/n). Weights stay where
    they are.

    With 2 ranks, x [[1, 2]] and W [[1, 0], [0, 1]]:  rank 0 computes gelu([[1]]), rank 1 gelu([[2]]); both return
    y = [[0.8413, 1.9545]].
    About 10 lines.
    """
    raise NotImplementedError("Problem 4.2: tensor_parallel_forward")


def tensor_parallel_backward(
    shards: list[Tensor], saved: list[tuple[Tensor, Tensor]], grad_y: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Problem 4.3 · Backward through the same L layers, by hand: no autograd across ranks.

    Two facts decide what has to be communicated, layer by layer:
    - ``grad_y`` is the whole gradient, already the same on every rank, because all that follows was computed by each. The
      columns that belong to this rank's part of the last layer are simply taken out of it.
    - Each rank then knows grad_x = Σ over ranks of grad_z[rank] @ W[rank]ᵀ only up to its own term. The layer below
      needs this rank's columns of the *sum*: a reduce-scatter. Taking its columns of its own term is the classical mistake.

    Args:
        shards: L tensors of shape (D, D/n), as in ``tensor_parallel_forward``.
        saved: L pairs ``(x, z)``, of shapes (B, D) and (B, D/n), as ``tensor_parallel_forward`` returns them.
        grad_y: (B, D), the gradient of the loss with respect to y, the same on every rank.
    Returns:
        ``(grad_x, gradients)``: the gradient with respect to x, (B, D), the whole on every rank; and L tensors of shape
        (D, D/n), the gradients of this rank's shards.
    Raises:
        ValueError: a shard does not have as many rows as ``grad_y`` has columns, D; or its columns, times n, are not D.

    Traffic: full credit for one reduce-scatter of a (B, D) gradient between two layers, L−1 in all, and one all-reduce of
    (B, D) at the end, for grad_x. Part of the credit for an all-reduce at each of the L layers, which moves almost twice as much.
    (A call that takes one tensor for all ranks cuts and stacks it along rows, here as in the forward pass. For columns, give
    ``dist.all_gather`` and ``dist.reduce_scatter`` a list of contiguous blocks, one for each rank.)

    With 2 ranks, one layer, x [[1, 2]], W [[1, 0], [0, 1]] and grad_y [[1, 1]]:  gelu′(1) = 1.0833, gelu′(2) = 1.0852;
    rank 0 knows the term [[1.0833, 0]], rank 1 [[0, 1.0852]]; both return grad_x = [[1.0833, 1.0852]]. Their shards' gradients
    are [[1.0833], [2.1666]] and [[1.0852], [2.1705]].
    About 15 lines.
    """
    raise NotImplementedError("Problem 4.3: tensor_parallel_backward")


class CopyToRanks(torch.autograd.Function):
    """Problem 4.4 · The operator *f* of Megatron-LM: every rank uses the same x [Shoeybi et al., 2019, figure 3].

        y = CopyToRanks.apply(x)

    Forward: the identity, for x of any shape, the same on every rank. What each rank does with its copy contributes one term to
    x's gradient, so the backward pass adds them up: all-reduce. It must not write into the gradient that it is given (autograd
    may use that elsewhere), nor rely on it being contiguous: that of ``y.sum()`` is one number seen many times.

    In a ``torch.autograd.Function``, ``backward`` gets the gradient of what ``forward`` returned, and returns that of its input.
    ``ctx`` would keep tensors from one for the other: nothing has to be kept here.

    With 2 ranks whose gradients of y are [1, 2] and [3, 4]:  the gradient of x is [4, 6] on both.
    About 5 lines, forward and backward.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> Tensor:
        """x, any shape → the same; x itself will do."""
        raise NotImplementedError("Problem 4.4: CopyToRanks.forward")

    @staticmethod
    def backward(ctx: FunctionCtx, grad_y: Tensor) -> Tensor:
        """The gradient of y on this rank → the sum over the ranks."""
        raise NotImplementedError("Problem 4.4: CopyToRanks.backward")


class SumOverRanks(torch.autograd.Function):
    """Problem 4.4 · The operator *g* of Megatron-LM, the conjugate of f: add up every rank's term.

        y = SumOverRanks.apply(x)

    Forward: all-reduce. x has any shape, may be non-contiguous, and keeps its values. Backward: the identity. Each term enters the sum
    with factor 1, and the gradient of the sum is already known on every rank, because what follows is computed by each.

    With 2 ranks whose x are [1, 2] and [3, 4]:  y is [4, 6] on both; a gradient [5, 5] of y is [5, 5] for each x.
    About 5 lines, forward and backward.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> Tensor:
        """x, any shape, one term on every rank → the sum of all terms."""
        raise NotImplementedError("Problem 4.4: SumOverRanks.forward")

    @staticmethod
    def backward(ctx: FunctionCtx, grad_y: Tensor) -> Tensor:
        """The gradient of y, the same on every rank → the same."""
        raise NotImplementedError("Problem 4.4: SumOverRanks.backward")


def megatron_pair(column: Tensor, row: Tensor, x: Tensor) -> Tensor:
    """Problem 4.4 · Two layers, y = gelu(gelu(x @ A) @ B), with one all-reduce forward and one backward.

    A is cut by columns. Its outputs stay where they are: gelu works on each entry alone, and B is cut by rows, so that a
    rank has just the columns of the hidden layer that its rows of B need. What comes out are the terms of a sum, and gelu of
    a sum is not the sum of gelus. Autograd must find the right gradients of ``column``, ``row`` and ``x`` on every rank, those of
    them that require one (shards may be frozen), also where several pairs follow each other.

    Args:
        column: (D, H/n), this rank's columns of A, (D, H).
        row: (H/n, D), this rank's rows of B, (H, D).
        x: (B, D), the same on every rank.
    Returns:
        y, (B, D), the same on every rank.
    Raises:
        ValueError: ``x`` does not have as many columns as ``column`` has rows, or ``column`` not as many columns as ``row``
            has rows.

    With 2 ranks, x [[1]], A [[1, 2]] and B [[1], [1]]:  rank 0 computes gelu(1)·1 = 0.8413, rank 1 gelu(2)·1 = 1.9545; both
    return gelu(2.7958) = [[2.7886]].
    About 8 lines.
    """
    raise NotImplementedError("Problem 4.4: megatron_pair")
