"""Part 3 · Data parallelism (20 points): every rank has the whole model and a part of the batch.

    make test PART=data_parallel                              judge this file
    python -m handout.run data_parallel --world-size 4        watch four ranks train one model

The loss is a mean over the batch. If n ranks hold equally large parts of the batch, the mean of
their losses is the loss of the whole batch. Differentiation is linear, so the mean of their
gradients is the gradient of the whole batch. So each rank runs forward and backward on its own
shard, and then the gradients are averaged over the ranks. Ranks that start with equal weights keep
equal weights.

``n = dist.get_world_size()``. The model, and the forward and backward pass of a layer, are given in
``handout/mlp.py``. For every function here:
- Inputs must stay unchanged unless the docstring says otherwise. They may be non-contiguous.
- The function works for 1, 2, 3, 4, … ranks, and when it is called twice. A later call
  must not change an earlier result.
- If an argument is wrong, it is wrong on every rank. Raise ``ValueError`` before anything is sent.
  The message contains the numbers that are wrong, or that do not fit each other.
- Multiply matrices with torch (``@``, ``mm``, ``bmm``, …), in the thread that calls your function.
  Checks require these products, also for the gradients of weights. Checks do not count other
  products, such as elementwise products and ``torch.outer``.
"""

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from handout import mlp


def shard_batch(batch: Tensor) -> Tensor:
    """Problem 3.1 · Return this rank's rows of the batch. Nothing is communicated.

    Args:
        batch: (B, …) with B ≥ 1, the same on every rank.
    Returns:
        (B/n, …): rows [rank·B/n, (rank+1)·B/n). It may be a view of the batch.
    Raises:
        ValueError: B is not divisible by n ("a batch of 10 is not divisible by 4 ranks").

    With 2 ranks and a batch [[1], [2], [3], [4]]:  rank 0 [[1], [2]], rank 1 [[3], [4]].
    About 5 lines.
    """
    raise NotImplementedError("Problem 3.1: shard_batch")


def broadcast_parameters(parameters: Iterable[Tensor], root: int = 0) -> None:
    """Problem 3.2 · Overwrite the parameters of all ranks with those of the root, in place.

    Args:
        parameters: tensors of any shapes, float16 to float64, in the same order on every rank. They
            may require gradients, and they may be non-contiguous. On all ranks except the root,
            write the new values into the memory of these tensors.
        root: the rank whose values all ranks get.
    Raises:
        ValueError: ``root`` is not a rank.

    With 2 ranks and root 1:  rank 0 [[1], [2]], rank 1 [[3], [4]]  →  [[3], [4]] on both.
    About 5 lines.
    """
    raise NotImplementedError("Problem 3.2: broadcast_parameters")


def data_parallel_step(weights: list[Tensor], shard: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Problem 3.3 · Compute the local loss, and the gradients of the whole batch.

    Args:
        weights: L tensors of shape (D, D), equal on every rank. They must stay unchanged, and they
            do not require gradients.
        shard: (B/n, D), this rank's rows of the batch.
    Returns:
        ``(loss, gradients)``. The loss is the loss of this rank's shard, a scalar. Do *not* average
        it. (The mean of these losses over the ranks is the loss of the whole batch.) The gradients
        are L tensors of shape (D, D): the gradients of the whole batch's loss, equal on every rank.

    Traffic: one all-reduce for each gradient, or one all-reduce for all of them, in the dtype of
    the weights. You may use other operations if no rank sends more bytes than in these all-reduces.
    Nothing else is sent: no rows and no activations, not even small ones. Each rank computes only
    with its own rows.

    With 2 ranks, one weight [[w]] and rows [x₀] and [x₁]:  if the local gradients are [[2]] and
    [[4]], both ranks return [[3]].
    About 15 lines by hand, 8 with autograd.
    """
    raise NotImplementedError("Problem 3.3: data_parallel_step")


def train(
    weights: list[Tensor], shards: list[Tensor], lr: float = 1e-3
) -> tuple[Tensor, torch.optim.AdamW]:
    """Problem 3.4 · Train with AdamW, one step for each shard.

    After every step, the weights, the loss and the optimizer's state equal those of a single device
    that trains on the whole batch.

    Args:
        weights: L tensors of shape (D, D), equal on every rank. They do not require gradients,
            neither before nor after the call. Update them in place. They may keep a ``grad``.
        shards: K ≥ 1 tensors of shape (B/n, D): this rank's rows of the batch in each step.
        lr: the learning rate. Everything else in ``torch.optim.AdamW`` keeps its default.
    Returns:
        ``(losses, optimizer)``. The losses have shape (K,): the loss of the *whole* batch in each
        step, before the update, equal on every rank. The optimizer is the ``torch.optim.AdamW``
        that made the steps. Its parameters are ``weights``, in the same order.

    Traffic: for each step, the traffic of ``data_parallel_step``, and at most 16·n bytes for
    losses. You may average the losses of all steps together, at the end.

    A hint: AdamW divides each gradient by the gradient's own magnitude. So training looks almost
    the same with gradients that are n times too large. But the state of the optimizer shows the
    difference, and the checks compare this state.

    With 2 ranks, one weight [[1]], one step, lr = 0.1, and local gradients [[2]] and [[4]]:  the
    step uses the gradient [[3]]. The weight becomes [[0.899]] on both: AdamW subtracts lr · 0.01 of
    it (weight decay), and in its first step lr · g/|g| = lr.
    About 12 lines.
    """
    raise NotImplementedError("Problem 3.4: train")


class GradientBuckets:
    """Problem 3.5 · Average the gradients in buckets, while the backward pass is still running.

    If every parameter has a collective of its own, the latency is paid for every parameter. A
    single collective for all parameters cannot begin before the backward pass has ended. Buckets
    are a compromise: hooks, functions that autograd calls, collect gradients as they become ready.
    A full bucket is sent while earlier layers are still being differentiated [Li et al., PyTorch
    Distributed, VLDB 2020].

        buckets = GradientBuckets(parameters, bucket_bytes=1 << 20)
        loss.backward()          # hooks fire; asynchronous all-reduces begin
        buckets.wait()           # afterwards every gradient is the average over the ranks
        optimizer.step()

    These rules make it work:
    - Gradients become ready from the last layer to the first. So fill the buckets from the last
      parameter to the first.
    - All ranks must start the same collectives in the same order, even if gradients become ready in
      another order on one rank. So start bucket i+1 only after bucket i.
    - A hook must not wait for a communication, otherwise nothing overlaps.
    - In each backward pass, send one all-reduce for each bucket, of exactly its gradients, and
      nothing else.
    - A bucket is full when all its gradients are ready. Start a bucket as soon as it is full and
      all earlier buckets have started: in the hook of the parameter that completes the bucket,
      before autograd comes to the next layer. Do not hold full buckets back. Do not start buckets
      in another thread: this thread might start them too late.
    """

    def __init__(self, parameters: Iterable[Tensor], bucket_bytes: int) -> None:
        """Pack the parameters into buckets, and register a hook for each parameter.

        Args:
            parameters: leaf tensors (not results of operations) of one float dtype, in the order of
                the layers, the same on every rank. A parameter that does not require a gradient
                (frozen) stays as it is. A parameter that appears twice (tied) is packed once, at
                its first place in the list. You may assume that only one ``GradientBuckets`` is
                created for a set of parameters.
            bucket_bytes: fill the current bucket until the next parameter would make it larger than
                ``bucket_bytes``; then start a new bucket. A parameter larger than ``bucket_bytes``
                gets a bucket of its own, to which no other parameter is added.
        Raises:
            ValueError: ``bucket_bytes`` is not positive.

        With three parameters of 8 bytes each and buckets of 16 bytes: the third and the second
        share a bucket, and the first has a bucket of its own. Use
        ``Tensor.register_post_accumulate_grad_hook``: autograd calls the hook with the parameter as
        soon as the parameter's ``grad`` is complete.
        About 20 lines, or 40 with ``wait`` and the hook.
        """
        raise NotImplementedError("Problem 3.5: GradientBuckets")

    def wait(self) -> None:
        """Finish the step: every parameter's ``grad`` becomes the average over the ranks.

        The caller calls this method once after each backward pass, on every rank. If a parameter
        got no gradient in this pass, its bucket has perhaps not been started yet. Start such
        buckets now, with zeros for the missing gradients. Then all ranks start the same
        collectives. If no rank used a parameter, its ``grad`` may become zero or None. (DDP leaves
        None, and AdamW then skips the parameter. If ``grad`` is zero, AdamW still applies weight
        decay.) A ``grad`` may be a view of its bucket, and the next backward pass may overwrite it.
        Afterwards the object is ready for the next backward pass. Before that pass, the caller sets
        every ``grad`` to None.
        """
        raise NotImplementedError("Problem 3.5: GradientBuckets.wait")
