"""Part 7 · Two dimensions (8 points): tensor parallelism in rows, data parallelism in columns.

    make test PART=device_mesh                              judge this file
    python -m handout.run device_mesh --world-size 4        watch a mesh of 2 × 2 ranks take a step

The ranks form a mesh of D rows and T columns, whose shape is ``(D, T)``. On a mesh of 2 × 3:

                     tensor 0   tensor 1   tensor 2
        data 0       rank 0     rank 1     rank 2          a row: the same rows of the batch
        data 1       rank 3     rank 4     rank 5
                     a column: the same shards of the weights

The ranks of a row are tensor parallel: each has its own shards of the weights, and all have the
same rows of the batch. The ranks of a column are data parallel: each has its own rows of the batch,
and all have the same shards of the weights. Neighbours in a row have consecutive ranks. On a
cluster, consecutive ranks are devices of one machine, with fast links. Tensor parallelism needs
fast links more than data parallelism does, because it communicates in every layer.

``n = dist.get_world_size()``, ``rank = dist.get_rank()``. For every function here:
- Inputs must stay unchanged, and may be non-contiguous.
- The function works on every mesh, also on a mesh of one row, of one column, or of one rank. It
  also works when it is called twice. A later call must not change an earlier result.
- If an argument is wrong, it is wrong on every rank. Raise ``ValueError`` before anything is sent.
  The message contains the wrong numbers, and those that they must fit, as in the examples.

Use any collectives and any ``mlp`` function, also on shards. A collective with ``group=row``
involves only the ranks of the row, and ``dist.get_world_size(row)`` is their number.
"""

import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from handout import mlp


def coordinates(rank: int, shape: tuple[int, int]) -> tuple[int, int]:
    """Problem 7.1 · Return the place of a rank on a mesh. Nothing is communicated.

    Args:
        rank: any rank of the mesh, not only this one.
        shape: ``(D, T)``, the numbers of rows and of columns.
    Returns:
        ``(data, tensor)``: the row and the column of the rank, counted from 0.
    Raises:
        ValueError: the mesh has no such rank ("rank 6 is not on a mesh of 2 × 3").

    On a mesh of 2 × 3, rank 5 has the coordinates (1, 2).
    About 3 lines.
    """
    raise NotImplementedError("Problem 7.1: coordinates")


def rank_at(place: tuple[int, int], shape: tuple[int, int]) -> int:
    """Problem 7.1 · Return the rank at a place of a mesh, the inverse of ``coordinates``.

    Args:
        place: ``(data, tensor)``, the row and the column, counted from 0.
        shape: ``(D, T)``.
    Raises:
        ValueError: the place is not on the mesh ("(2, 0) is not on a mesh of 2 × 3"). Negative
            coordinates are never on the mesh.

    On a mesh of 2 × 3, rank 5 is at (1, 2).
    About 3 lines.
    """
    raise NotImplementedError("Problem 7.1: rank_at")


def mesh_groups(shape: tuple[int, int]) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """Problem 7.1 · Make the process groups of a mesh, and return the two groups of this rank.

    ``dist.new_group(ranks)`` makes a group. *Every* rank of the world has to call ``new_group``,
    also the ranks that are not in the group. All ranks have to make the same groups in the same
    order. torch numbers the groups, and the ranks of a group find each other by the number of the
    group. If each rank makes only its own groups, different groups have the same number. gloo and
    nccl then connect the wrong ranks, or wait for ever. Do not use ``use_local_synchronization``.

    Args:
        shape: ``(D, T)``, the same on every rank.
    Returns:
        ``(row, column)``. The row is the group of the T ranks with this rank's data coordinate, in
        the order of the ranks. The column is the group of the D ranks with this rank's tensor
        coordinate. A later call with the same shape may return the same groups again.
    Raises:
        ValueError: D·T is not the world size ("4 ranks do not make a mesh of 2 × 3"), or D or T is
            less than 1.

    On a mesh of 2 × 2, the rows are [0, 1] and [2, 3], the columns [0, 2] and [1, 3]. All ranks
    make these four groups. Rank 2 returns the groups [2, 3] and [0, 2].
    About 12 lines.
    """
    raise NotImplementedError("Problem 7.1: mesh_groups")


def mesh_step(
    pairs: list[tuple[Tensor, Tensor]],
    x: Tensor,
    row: dist.ProcessGroup,
    column: dist.ProcessGroup,
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    """Problem 7.2 · Compute the local loss, and the gradients of the whole batch, on a mesh.

    The model has P pairs of layers, y = gelu(gelu(x @ A) @ B), one after the other. Each pair is
    the Megatron pair of Shoeybi et al. (2019): over the T ranks of a mesh row, A is sharded by
    columns and B by rows. Together, the ranks of a mesh row do the work of one rank in data
    parallelism: they compute the gradients of their own rows of the batch. The mean of these
    gradients over the column is the gradient of the whole batch.

    Sum two kinds of tensors over the row, as Megatron's operators g and f do. In the forward pass,
    add up the partial products with B (as g does). In the backward pass, add up the partial
    gradients of a pair's input (as f does). A pair's output is replicated in the row, and the
    output's gradient is replicated, too: do not add up this gradient.

    Args:
        pairs: P ≥ 1 pairs (A, B) of this rank's shards, (K, H/T) and (H/T, K), float32 or float64.
            H may differ between the pairs. The shards do not require gradients.
        x: this rank's rows of the batch, (rows, K). It is the same on all ranks of the row.
        row: the group of this rank's row, T ranks.
        column: the group of this rank's column, D ranks.
    Returns:
        ``(loss, gradients)``. The loss is the mean of y² over this rank's rows, a scalar, *not*
        averaged over the column. The gradients are P pairs of the shapes of ``pairs``: this rank's
        shards of the gradients of the whole batch's loss.
    Raises:
        ValueError: in some pair, a weight does not have as many rows as its input has columns.
            Check all pairs before the first all-reduce.

    Traffic: in the row, one all-reduce of (rows, K) for each pair in the forward pass. In the
    backward pass, one for each pair except the first: 2P − 1 in all. (The gradient with respect to
    x is not needed.) In the column, one all-reduce for each gradient, or one for all of them. Send
    all tensors in the dtype of the shards, and nothing else. Use the groups ``row`` and ``column``
    themselves, and no other group. Do not make a group in a step, because every rank would have to
    take part. You may use other collectives if no rank then sends more bytes. A rank computes with
    its own rows of the batch and its own shards, and never gathers the rows or shards of other
    ranks.

    With a mesh of 2 × 1, one pair ([[a]], [[b]]) and rows [x₀] and [x₁]: if the gradients of the
    two rows' losses with respect to a are [[2]] and [[4]], both ranks return [[3]] for a.
    About 30 lines.
    """
    raise NotImplementedError("Problem 7.2: mesh_step")
