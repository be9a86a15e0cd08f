"""Part 1 · Collectives (20 points): the vocabulary of every distributed program.

    make test PART=collectives                              judge this file
    python -m handout.run collectives --world-size 4        watch your functions work on four ranks

Your functions run inside one *rank*: one of ``n = dist.get_world_size()`` processes that all execute this file.
A rank is handed its own tensors, returns its own tensors, and learns of the others only by communicating.

For every function here:
- inputs keep their values: what you return is new memory (with one rank it may be the input itself);
- what you return does not require a gradient, whether the inputs do or not (``detach()``): nobody may differentiate through a
  communication without saying so. The operators of Problem 4.4 will say so;
- a tensor has the same shape and dtype on every rank, is float32, float64 or int64, holds at least one element, and need
  **not** be contiguous, nor lie in memory as on the other ranks. Some calls of ``torch.distributed`` refuse other memory, some
  mix up its entries without a word; and ``clone()`` and ``empty_like`` of a transpose are transposed, too;
- it works for 1, 2, 3, 4, … ranks, for any root, and when it is called twice;
- in Problem 1.1 the function communicates once, by the collective that it is named after; what it computes before and
  after that is up to you;
- misuse raises ``ValueError`` with a message that holds the offending value (and n, where it matters), before anything is
  sent, on every rank that can detect it. Only the root can see a bad ``tensor`` in scatter, so there only the root raises.
"""

from collections.abc import Callable
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")

# What an ``op`` may be called. "average" is not among them: some backends lack ReduceOp.AVG, and some versions of
# gloo silently return the sum for it.
OPS = {
    "sum": dist.ReduceOp.SUM,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "product": dist.ReduceOp.PRODUCT,
}


def broadcast(tensor: Tensor, root: int) -> Tensor:
    """Problem 1.1 · Every rank gets the root's tensor.

    Args:
        tensor: any shape. On the root the data to send; elsewhere only its shape and dtype matter.
        root: the rank that sends.
    Returns:
        The root's tensor, on every rank.
    Raises:
        ValueError: ``root`` is not a rank.

    With 2 ranks and root 1:  rank 0 [1, 2], rank 1 [3, 4]  →  rank 0 [3, 4], rank 1 [3, 4].
    About 3 lines.
    """
    raise NotImplementedError("Problem 1.1: broadcast")


def scatter(tensor: Tensor | None, like: Tensor, root: int) -> Tensor:
    """Problem 1.1 · The root deals out its tensor, one block of rows to each rank.

    Args:
        tensor: on the root (n·k, …); None elsewhere.
        like: (k, …), with the shape, dtype and device of the block that this rank receives; its values mean nothing.
        root: the rank that deals.
    Returns:
        Rows [rank·k, (rank+1)·k) of the root's tensor.
    Raises:
        ValueError: ``root`` is not a rank; ``like`` has no dimension 0; or, on the root, the tensor is None, or is not (n·k, …):
            n blocks of the shape of ``like``, one below the other.

    With 2 ranks and root 0:  rank 0 [1, 2, 3, 4]  →  rank 0 [1, 2], rank 1 [3, 4].
    About 6 lines.
    """
    raise NotImplementedError("Problem 1.1: scatter")


def gather(tensor: Tensor, root: int) -> Tensor | None:
    """Problem 1.1 · The root collects the tensors of all ranks. The inverse of scatter.

    Args:
        tensor: (k, …).
        root: the rank that collects.
    Returns:
        On the root (n·k, …): the tensors in the order of the ranks, along dimension 0. None elsewhere.
    Raises:
        ValueError: ``root`` is not a rank; the tensor has no dimension 0.

    With 2 ranks and root 1:  rank 0 [1, 2], rank 1 [3, 4]  →  rank 0 None, rank 1 [1, 2, 3, 4].
    About 6 lines.
    """
    raise NotImplementedError("Problem 1.1: gather")


def reduce(tensor: Tensor, root: int, op: str = "sum") -> Tensor | None:
    """Problem 1.1 · The root gets the elementwise reduction of all ranks' tensors.

    Args:
        tensor: any shape.
        root: the rank that receives.
        op: "sum", "max", "min", "product" or "average" (float dtypes only).
    Returns:
        On the root the reduction, of the shape of ``tensor``. None elsewhere.
    Raises:
        ValueError: ``root`` is not a rank; ``op`` is none of the five, such as a list; the average of integers.

    With 2 ranks, root 0, "max":  rank 0 [1, 5], rank 1 [4, 2]  →  rank 0 [4, 5], rank 1 None.
    About 6 lines.
    """
    raise NotImplementedError("Problem 1.1: reduce")


def all_gather(tensor: Tensor) -> Tensor:
    """Problem 1.1 · Every rank gets the tensors of all ranks: a gather whose root is everyone.

    Args:
        tensor: (k, …).
    Returns:
        (n·k, …): the tensors in the order of the ranks, along dimension 0.
    Raises:
        ValueError: the tensor has no dimension 0.

    With 2 ranks:  rank 0 [1, 2], rank 1 [3, 4]  →  [1, 2, 3, 4] on both.
    About 3 lines.
    """
    raise NotImplementedError("Problem 1.1: all_gather")


def reduce_scatter(tensor: Tensor, op: str = "sum") -> Tensor:
    """Problem 1.1 · The reduction of all ranks' tensors, one block of rows of it to each rank.

    Args:
        tensor: (n·k, …).
        op: "sum", "max", "min", "product" or "average" (float dtypes only).
    Returns:
        (k, …): rows [rank·k, (rank+1)·k) of the reduction.
    Raises:
        ValueError: the first dimension does not divide by n, or there is none; ``op`` is none of the five, such as a list; the
            average of integers.

    With 2 ranks, "sum":  rank 0 [1, 2], rank 1 [3, 4]  →  rank 0 [4], rank 1 [6].
    About 4 lines.
    """
    raise NotImplementedError("Problem 1.1: reduce_scatter")


def all_reduce(tensor: Tensor, op: str = "sum") -> Tensor:
    """Problem 1.1 · Every rank gets the elementwise reduction of all ranks' tensors.

    Args:
        tensor: any shape.
        op: "sum", "max", "min", "product" or "average" (float dtypes only).
    Returns:
        The reduction, of the shape of ``tensor``.
    Raises:
        ValueError: ``op`` is none of the five, such as a list; the average of integers.

    With 2 ranks, "product":  rank 0 [1, 2], rank 1 [3, 4]  →  [3, 8] on both.
    About 4 lines.
    """
    raise NotImplementedError("Problem 1.1: all_reduce")


def all_to_all(tensor: Tensor) -> Tensor:
    """Problem 1.1 · Every rank sends a different block of rows to every rank: a transposition of blocks.

    Args:
        tensor: (n·k, …); block j, rows [j·k, (j+1)·k), is for rank j.
    Returns:
        (n·k, …); block i is what rank i had for this rank.
    Raises:
        ValueError: the first dimension does not divide by n, or there is none.

    With 2 ranks:  rank 0 [1, 2], rank 1 [3, 4]  →  rank 0 [1, 3], rank 1 [2, 4].
    About 3 lines.
    """
    raise NotImplementedError("Problem 1.1: all_to_all")


def in_rank_order(action: Callable[[], T]) -> T:
    """Problem 1.2 · Run ``action`` once on every rank, in the order of the ranks.

    Rank r begins only when rank r−1 has ended, and nobody returns before the last rank has ended: what you want for
    printing. Barriers are all you need.

    Args:
        action: takes nothing; may take a while.
    Returns:
        What ``action`` returned on this rank.

    With 3 ranks and an action that prints:  rank 0 prints, then rank 1, then rank 2.
    About 5 lines.
    """
    raise NotImplementedError("Problem 1.2: in_rank_order")


def all_reduce_from_parts(tensor: Tensor) -> Tensor:
    """Problem 1.3 · The sum over all ranks, built from one reduce-scatter and one all-gather.

    This is what an all-reduce *is*, and why it costs what those two cost together. The number of elements need not
    divide by n.

    Args:
        tensor: any shape.
    Returns:
        The sum of all ranks' tensors, of the shape of ``tensor``.

    With 2 ranks:  rank 0 [1, 2, 3], rank 1 [4, 5, 6]  →  [5, 7, 9] on both; on the way, rank 0 held [5, 7] and
    rank 1 held [9, 0].
    About 7 lines.
    """
    raise NotImplementedError("Problem 1.3: all_reduce_from_parts")


def average(tensor: Tensor) -> Tensor:
    """Problem 1.4 · The average over all ranks, without ReduceOp.AVG.

    Exact about the division: sum first and divide once, so that the result is the sum's nearest quotient. Dividing
    before the sum rounds n times, and multiplying by 1/n rounds 1/n first.

    Args:
        tensor: any shape, a float dtype.
    Returns:
        The average, of the shape and dtype of ``tensor``.
    Raises:
        ValueError: an integer dtype; the message names it.

    With 3 ranks holding [1], [2] and [4]:  [2.3333333] on all.
    About 4 lines.
    """
    raise NotImplementedError("Problem 1.4: average")


def overlapped_all_reduce(tensor: Tensor, compute: Callable[[], T]) -> tuple[Tensor, T]:
    """Problem 1.5 · Sum over all ranks while something else is being computed.

    Start the all-reduce, call ``compute`` once while it is under way, and wait only then. What is judged is the order of
    these events: another rank may be made to come late, and ``compute`` must not have to wait for it.

    Args:
        tensor: any shape.
        compute: takes nothing; does not communicate.
    Returns:
        ``(total, result)``: the sum of all ranks' tensors, and what ``compute`` returned.

    With 2 ranks, [1] and [2], and a compute that returns "done":  ([3], "done") on both.
    About 5 lines.
    """
    raise NotImplementedError("Problem 1.5: overlapped_all_reduce")


def shift_right(tensor: Tensor) -> Tensor:
    """Problem 1.6 · Send to the right neighbour, receive from the left one, on every rank at once.

    The ranks form a ring: to the right of the last stands the first. A blocking send may wait until its receiver is
    there, so a ring in which everyone sends first can stand still for ever, at any size.

    Args:
        tensor: any shape.
    Returns:
        The tensor of rank (rank − 1) mod n.

    With 3 ranks holding [0], [1] and [2]:  rank 0 [2], rank 1 [0], rank 2 [1].
    About 6 lines.
    """
    raise NotImplementedError("Problem 1.6: shift_right")


def ring_all_reduce(tensor: Tensor) -> Tensor:
    """Problem 1.7 · The sum over all ranks, from sends and receives alone.

    Cut the tensor into n chunks. In each of n−1 steps every rank passes one chunk to its right neighbour and adds the one
    from its left neighbour to its own: after them, each rank holds one finished chunk (reduce-scatter). In n−1 more
    steps the finished chunks travel round the ring (all-gather). Each rank sends 2(n−1) chunks of 1/n of the tensor,
    which no all-reduce can beat by more than a constant [Patarasuk and Yuan, 2009].

    Args:
        tensor: any shape, of one element or more, also fewer than n.
    Returns:
        The sum of all ranks' tensors, of the shape of ``tensor``.

    Traffic: at most 2(n−1) sends a rank (none at n = 1), each of at most ⌈elements / n⌉ elements; no collectives.

    With 2 ranks:  rank 0 [1, 2], rank 1 [3, 4]  →  first step: rank 0 sends [1] and adds [4] to its [2], while rank 1 sends
    [4] and adds [1] to its [3]; second step: the sums [6] and [4] change places; [4, 6] on both.
    (``torch.chunk`` may make fewer than n chunks: of 4 elements for 3, it makes 2.)
    About 15 lines.
    """
    raise NotImplementedError("Problem 1.7: ring_all_reduce")
