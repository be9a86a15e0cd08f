"""Part 4 · Tensor parallelism (20 points)

Every rank has the whole batch and a shard of every weight.

    make test PART=tensor_parallel                              judge this file
    python -m handout.run tensor_parallel --world-size 4        watch four ranks share one model

Each tensor is replicated, sharded (by rows or by columns) or partial. Part 4 of ASSIGNMENT.md shows
the three states with numbers. Beside each line of your forward and backward passes, write the state
and the shape of its tensor, as in ASSIGNMENT.md.

A matrix product can be cut in two ways. If W is sharded by columns, x must be replicated. Every
rank computes its own columns of the result:

    x @ [W₀ W₁] = [x @ W₀   x @ W₁]                 sharded by columns

If W is sharded by rows, x must be sharded by columns. Every rank computes one summand:

    [x₀ x₁] @ [W₀; W₁] = x₀ @ W₀ + x₁ @ W₁          partial

The backward pass multiplies by the transposed weight. If a weight is sharded by columns, its
transpose is sharded by rows. So the product of the backward pass is cut in the other of these two
ways. In Problems 4.2 to 4.4 no rank ever holds more than its shard of a weight, or of the gradient
of a weight.

``n = dist.get_world_size()``, ``rank = dist.get_rank()``. For every function here:
- Inputs must stay unchanged, may be non-contiguous, and are float32 or float64. Results have the
  dtype of the inputs. Except in Problem 4.4, inputs do not require gradients.
- The function works for 1, 2, 3, 4, … ranks, for one layer or more, and when it is called twice.
  A later call must not change an earlier result.
- If an argument is wrong, it is wrong on every rank. Raise ``ValueError`` before anything is sent.
  The message contains the numbers that do not fit each other.

Traffic is the number of bytes that a rank sends, if each collective uses its best algorithm. Let S
be the bytes of the full tensor. An all-reduce of S costs 2(n−1)/n·S. An all-gather that makes S, or
a reduce-scatter of S, costs half as much. Use any collectives you like, and any ``mlp`` function
that also works on a shard.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import FunctionCtx, once_differentiable

from handout import mlp


# BEGIN SOLUTION
def _own_shard(weight: Tensor, dim: int, name: str) -> Tensor:
    """Return this rank's shard of a weight along a dimension, in memory of its own."""
    n = dist.get_world_size()
    if weight.shape[dim] % n:
        raise ValueError(f"{weight.shape[dim]} {name} are not divisible by {n} ranks")
    return weight.chunk(n, dim)[dist.get_rank()].clone(memory_format=torch.contiguous_format)


# END SOLUTION
def shard_columns(weight: Tensor) -> Tensor:
    """Problem 4.1 · Return this rank's columns of a weight. Nothing is communicated.

    Args:
        weight: replicated, (I, O).
    Returns:
        sharded by columns, (I, O/n): columns [rank·O/n, (rank+1)·O/n), contiguous, in memory of its
        own. A view would keep all of the weight alive, and the ranks would save no memory.
        ``contiguous()`` returns the view itself if the view is already contiguous. ``clone()`` of a
        transpose is still transposed, unless it gets ``memory_format=torch.contiguous_format``.
    Raises:
        ValueError: O is not divisible by n ("10 columns are not divisible by 4 ranks").

    With 2 ranks and [[1, 2], [3, 4]]:  rank 0 [[1], [3]], rank 1 [[2], [4]].
    About 5 lines.
    """
    # BEGIN SOLUTION 4.1: shard_columns
    return _own_shard(weight, 1, "columns")
    # END SOLUTION


def shard_rows(weight: Tensor) -> Tensor:
    """Problem 4.1 · Return this rank's rows of a weight. Nothing is communicated.

    Args:
        weight: replicated, (I, O).
    Returns:
        sharded by rows, (I/n, O): rows [rank·I/n, (rank+1)·I/n), contiguous, in memory of its own.
    Raises:
        ValueError: I is not divisible by n ("10 rows are not divisible by 4 ranks").

    With 2 ranks and [[1, 2], [3, 4]]:  rank 0 [[1, 2]], rank 1 [[3, 4]].
    About 5 lines.
    """
    # BEGIN SOLUTION 4.1: shard_rows
    return _own_shard(weight, 0, "rows")
    # END SOLUTION


# BEGIN SOLUTION
def _check_columns(shards: list[Tensor], x: Tensor, name: str) -> None:
    """Raise ValueError unless x has D columns and each shard is (D, D/n)."""
    n, width = dist.get_world_size(), x.shape[1]
    for rows, columns in (shard.shape for shard in shards):
        if rows != width:
            raise ValueError(f"{name} has {width} columns, but a shard has {rows} rows")
        if columns * n != width:
            raise ValueError(f"{n} shards of {columns} columns do not make {width} columns")


def _all_gather_columns(y: Tensor) -> Tensor:
    """Return y replicated, (B, D). The argument is sharded by columns, (B, D/n)."""
    shards = [
        torch.empty_like(y, memory_format=torch.contiguous_format)
        for _ in range(dist.get_world_size())
    ]
    dist.all_gather(shards, y.contiguous())  # the shards of all ranks, (B, D/n) each
    return torch.cat(shards, dim=1)  # replicated, (B, D)


def _reduce_scatter_columns(partial: Tensor) -> Tensor:
    """Return the sum over the ranks, sharded by columns, (B, D/n).

    The argument is partial, (B, D).
    """
    # partial, (B, D/n) each
    blocks = [block.contiguous() for block in partial.chunk(dist.get_world_size(), dim=1)]
    total = torch.empty_like(blocks[0])
    dist.reduce_scatter(total, blocks)  # sharded by columns, (B, D/n)
    return total


# END SOLUTION
def tensor_parallel_forward(
    shards: list[Tensor], x: Tensor
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Problem 4.2 · Run forward through L layers, x[l+1] = gelu(x[l] @ W[l]).

    Every W is sharded by columns. Every rank computes its columns of a layer's output. The next
    layer needs a replicated input, so an all-gather makes the output replicated. Gelu works on each
    entry by itself, so it may come before the all-gather.

    Args:
        shards: L weights, sharded by columns, (D, D/n) each.
        x: the whole batch, replicated, (B, D).
    Returns:
        ``(y, saved)``.
        y: the output, replicated, (B, D).
        saved: for each layer ``(x, z)``, which the layer's backward pass needs. x is the layer's
        input, replicated, (B, D). z = x @ W is sharded by columns, (B, D/n), in memory of that
        size. A view of a (B, D) tensor would keep n times as much memory alive.
    Raises:
        ValueError: a shard does not have D rows, where D is the number of columns of ``x``; or a
            shard does not have D/n columns ("4 shards of 2 columns do not make 4 columns": the
            message contains a shard's number of columns).

    Traffic: for each layer one all-gather that makes its (B, D) output, not one for each row.
    Weights are not sent.

    Layout: like other collectives (Part 1), ``dist.all_gather`` needs a list with one contiguous
    tensor for each rank. Instead of the list, some variants of these collectives use one large
    tensor. In such a tensor each rank has a block of rows, but here each rank has a block of
    columns.

    With 2 ranks, x [[1, 2]] and W [[1, 0], [0, 1]]:  rank 0 computes gelu([[1]]), rank 1
    gelu([[2]]); both ranks return y = [[0.8413, 1.9545]].
    About 10 lines.
    """
    # BEGIN SOLUTION 4.2: tensor_parallel_forward
    _check_columns(shards, x, "a batch")
    saved = []
    for shard in shards:
        y, z = mlp.layer_forward(x, shard)  # both sharded by columns, (B, D/n)
        saved.append((x, z))
        x = _all_gather_columns(y)  # replicated, (B, D)
    return x, saved
    # END SOLUTION


def tensor_parallel_backward(
    shards: list[Tensor], saved: list[tuple[Tensor, Tensor]], grad_y: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Problem 4.3 · Run backward through the L layers of Problem 4.2, by hand.

    Autograd does not see the calls of ``dist``. First find the state of every tensor. The state
    decides what to communicate:
    - ``grad_y`` is replicated: every rank computed all that follows y, so every rank has the
      complete gradient.
    - A rank has its own columns of z, so it needs the same columns of the gradient of y. From them
      it computes grad_z[rank], the gradient of its columns of z, and grad_z[rank] @ W[rank]ᵀ.
    - The sum of these products over the ranks is grad_x, the gradient of the layer's input. Which
      state is grad_x in, before you communicate? Which state does the layer before this one need?
      Which state does the caller need, at the end?
    A wrong answer can still give tensors of the right shape, and the right values with one rank.

    Args:
        shards: L weights, sharded by columns, (D, D/n) each, as in ``tensor_parallel_forward``.
        saved: L pairs ``(x, z)`` as ``tensor_parallel_forward`` returns them: x is replicated,
            (B, D), and z is sharded by columns, (B, D/n).
        grad_y: the gradient of the loss with respect to y, replicated, (B, D).
    Returns:
        ``(grad_x, gradients)``.
        grad_x: the gradient with respect to x, replicated, (B, D).
        gradients: L gradients of the weights, sharded by columns, (D, D/n) each, in memory of that
        size.
    Raises:
        ValueError: a shard does not have D rows, where D is the number of columns of ``grad_y``; or
            a shard does not have D/n columns (the message contains the shard's number of columns).

    Traffic: let S be the bytes of one (B, D) gradient. You get full credit if each rank sends at
    most (n−1)/n·S between two layers (there are L−1 such places), and at most 2(n−1)/n·S at the
    end, for grad_x. You get part of the credit if it sends 2(n−1)/n·S at each of the L layers. With
    many layers, that is almost twice as much. Send all rows of a tensor together. Weights and their
    gradients are not sent. (For the layout of columns, see Problem 4.2.)

    With 2 ranks, one layer, x [[1, 2]], W [[1, 0], [0, 1]] and grad_y [[1, 1]]:  gelu′(1) = 1.0833,
    gelu′(2) = 1.0852. Before the communication, rank 0 has [[1.0833, 0]] and rank 1 has [[0,
    1.0852]]; both ranks return grad_x = [[1.0833, 1.0852]]. The gradients of the ranks' shards are
    [[1.0833], [2.1666]] and [[1.0852], [2.1705]].
    About 15 lines.
    """
    # BEGIN SOLUTION 4.3: tensor_parallel_backward
    _check_columns(shards, grad_y, "a gradient")
    # sharded by columns, (B, D/n)
    own_columns = grad_y.chunk(dist.get_world_size(), dim=1)[dist.get_rank()]
    gradients: list[Tensor] = []
    for l in reversed(range(len(shards))):
        x, z = saved[l]  # x: replicated, (B, D); z: sharded by columns, (B, D/n)
        # grad_x: partial, (B, D); grad_weight: sharded by columns, (D, D/n)
        grad_x, grad_weight = mlp.layer_backward(x, z, shards[l], own_columns)
        gradients.insert(0, grad_weight)
        if l > 0:
            own_columns = _reduce_scatter_columns(grad_x)  # sharded by columns, (B, D/n)
    dist.all_reduce(grad_x)  # replicated, (B, D), as the x of the caller
    return grad_x, gradients
    # END SOLUTION


class CopyToRanks(torch.autograd.Function):
    """Problem 4.4 · The operator *f* of Megatron-LM: every rank uses the same x.

    Source: Shoeybi et al., 2019, figure 3.

        y = CopyToRanks.apply(x)

    Forward: return x as it is. x is replicated and may have any shape.

    Backward: each rank uses its copy of x differently, so the gradient that arrives is partial.
    An all-reduce makes it replicated. Do not write into the gradient that you are given: autograd
    may use it elsewhere. Do not assume that it is contiguous: for ``y.sum()`` it is a single
    number, expanded to y's shape with strides of 0.

    In a ``torch.autograd.Function``, ``backward`` gets the gradient of the result of ``forward``,
    and returns the gradient of the input of ``forward``. ``ctx`` can save tensors in ``forward``
    for use in ``backward``. Here ``backward`` needs none: save nothing.

    With 2 ranks whose gradients of y are [1, 2] and [3, 4]:  the gradient of x is [4, 6] on both.
    About 5 lines, forward and backward.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> Tensor:
        """Return x, replicated, of any shape. You may return x itself."""
        # BEGIN SOLUTION 4.4: CopyToRanks.forward
        return x.view_as(x)  # replicated
        # END SOLUTION

    @staticmethod
    @once_differentiable  # autograd would not see the all-reduce in a second derivative
    def backward(ctx: FunctionCtx, grad_y: Tensor) -> Tensor:
        """Return the gradient of x, replicated. ``grad_y`` is partial."""
        # BEGIN SOLUTION 4.4: CopyToRanks.backward
        grad_x = grad_y.clone(memory_format=torch.contiguous_format)  # partial
        dist.all_reduce(grad_x)  # replicated
        return grad_x
        # END SOLUTION


class SumOverRanks(torch.autograd.Function):
    """Problem 4.4 · The operator *g* of Megatron-LM: add up a partial tensor over the ranks.

    It is the conjugate of f, which is ``CopyToRanks``.

        y = SumOverRanks.apply(x)

    Forward: return the sum over the ranks, as an all-reduce does. x is partial and may have any
    shape and any strides. Do not modify it.

    Backward: return the gradient as it is. The tensor of each rank enters the sum with factor 1.
    Every rank computes all that follows the sum, so the gradient of the sum is replicated. Save
    nothing in ``ctx``.

    With 2 ranks whose x are [1, 2] and [3, 4]:  y is [4, 6] on both. If the gradient of y is
    [5, 5], each x has the gradient [5, 5].
    About 5 lines, forward and backward.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor) -> Tensor:
        """Return the sum over the ranks, replicated. ``x`` is partial, of any shape."""
        # BEGIN SOLUTION 4.4: SumOverRanks.forward
        y = x.clone(memory_format=torch.contiguous_format)  # partial
        dist.all_reduce(y)  # replicated
        return y
        # END SOLUTION

    @staticmethod
    def backward(ctx: FunctionCtx, grad_y: Tensor) -> Tensor:
        """Return the gradient of x, which is ``grad_y``. Both are replicated."""
        # BEGIN SOLUTION 4.4: SumOverRanks.backward
        return grad_y  # replicated
        # END SOLUTION


def megatron_pair(column: Tensor, row: Tensor, x: Tensor) -> Tensor:
    """Problem 4.4 · Compute two layers, y = gelu(gelu(x @ A) @ B).

    This needs one all-reduce forward and one backward, or a few other collectives that send the
    same number of bytes (not one for each row). A is sharded by columns, so the hidden layer
    gelu(x @ A) is sharded by columns, too. B is sharded by rows, so each rank already has the
    columns of the hidden layer that its rows of B need. The product with B is partial. Gelu of a
    sum is not the sum of gelus, so add up the products before the last gelu.

    On every rank, autograd must find the right gradient of each of ``column``, ``row`` and ``x``
    that requires a gradient. (Shards may be frozen.) This must also work if several pairs follow
    each other.

    Args:
        column: A, (D, H), sharded by columns: (D, H/n).
        row: B, (H, D), sharded by rows: (H/n, D).
        x: replicated, (B, D).
    Returns:
        y, replicated, (B, D).
    Raises:
        ValueError: ``x.shape[1]`` is not ``column.shape[0]``, or ``column.shape[1]`` is not
            ``row.shape[0]``.

    With 2 ranks, x [[1]], A [[1, 2]] and B [[1], [1]]:  rank 0 computes gelu(1)·1 = 0.8413, rank 1
    gelu(2)·1 = 1.9545; both ranks return gelu(2.7958) = [[2.7886]].
    About 8 lines.
    """
    # BEGIN SOLUTION 4.4: megatron_pair
    if x.shape[1] != column.shape[0]:
        raise ValueError(f"x has {x.shape[1]} columns, but A has {column.shape[0]} rows")
    if column.shape[1] != row.shape[0]:
        raise ValueError(f"A has {column.shape[1]} columns, but B has {row.shape[0]} rows")
    # f: x stays replicated, (B, D). hidden is sharded by columns, (B, H/n).
    hidden, _ = mlp.layer_forward(CopyToRanks.apply(x), column)
    # hidden @ row is partial, (B, D). g makes it replicated.
    return F.gelu(SumOverRanks.apply(hidden @ row))
    # END SOLUTION
