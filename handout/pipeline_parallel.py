"""Part 5 · Pipeline parallelism (25 points)

Every rank has some of the layers, and the batch flows through all ranks.

    make test PART=pipeline_parallel                              judge this file
    python -m handout.run pipeline_parallel --world-size 4        watch four stages work, and wait

Rank s holds stage s: some consecutive layers. Stage 0 is the first. A stage sends its output to the
next stage. In the backward pass it sends the gradient of its input to the previous stage. If the
batch went through as a whole, only one stage would work at a time. So the batch is cut into m
micro-batches of equal size that follow each other through the pipeline. The gradients of a stage's
weights add up over the micro-batches.

The loss is the mean over *all* entries of the output. Each micro-batch contributes 1/m of it, so

    loss = (1/m) Σᵢ mlp.loss(yᵢ)
    the gradient of the loss with respect to yᵢ  =  (1/m) mlp.loss_backward(yᵢ)

``n = dist.get_world_size()`` is the number of stages, ``s = dist.get_rank()``. For every function
here:
- For each micro-batch, the forward pass sends one tensor of shape (B/m, D) from each stage to the
  next, and the backward pass sends one from each stage to the previous stage. Use send and receive.
  Nothing else is sent, and there are no barriers.
- Inputs must stay unchanged. They may be non-contiguous, are float32 or float64, and do not require
  gradients. Results have the dtype of the inputs.
- The function works for 1, 2, 3, 4, … stages of one layer or more, also if the stages have
  different numbers of layers, and for any m ≥ 1. It also works when it is called twice with the
  same arguments: do not empty lists that are arguments. A later call must not change an earlier
  result, so make new tensors and lists in each call.
- If an argument is wrong, it is wrong on every rank. Raise ``ValueError`` before anything is sent.
  The message contains the wrong number, or the two numbers that do not fit each other.
- Multiply matrices with torch (``@``, ``mm``, ``bmm``, …), in the thread that calls your function.
  Checks require these products, also for the gradients of weights. They do not count other
  products, such as elementwise ones and ``torch.outer``.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from handout import mlp
from handout.timeline import Span, Timeline

# ("forward", 0): the forward pass of micro-batch 0 through a stage; or ("backward", 0)
Action = tuple[str, int]
Saved = list[tuple[Tensor, Tensor]]  # for each layer of a stage (x, z): its input, and x @ W


def split_layers(num_layers: int, num_stages: int) -> list[range]:
    """Problem 5.1 · Cut the layers into stages, as evenly as possible.

    Args:
        num_layers: L, for the layers 0 … L−1.
        num_stages: the number of stages.
    Returns:
        For each stage the range of its layers. The ranges are consecutive, cover every layer, and
        are not empty. The first L mod ``num_stages`` stages have one layer more than the others.
    Raises:
        ValueError: there is no stage ("2 layers cannot be cut into 0 stages"), or there are more
            stages than layers ("2 layers cannot be cut into 3 stages").

    ``split_layers(5, 3)``  →  [range(0, 2), range(2, 4), range(4, 5)].
    About 6 lines.
    """
    raise NotImplementedError("Problem 5.1: split_layers")


def pipeline_forward(
    weights: list[Tensor], x: Tensor | None, batch_size: int, num_micro_batches: int
) -> tuple[Tensor | None, list[Saved]]:
    """Problem 5.2 · Run the forward pass through all stages, in micro-batches.

    Send each micro-batch to the next stage as soon as it is ready, before this stage begins with
    its next micro-batch. Do not send in another thread, because it might send too late. On every
    stage, also on the last one, compute with each message before you wait for the next message.
    Compute each x @ W once.

    Args:
        weights: the k weights of this stage, (D, D) each, in the order of the layers.
        x: (B, D), the whole batch, on stage 0; None on all other stages.
        batch_size: B, on every stage.
        num_micro_batches: m. Micro-batch i is rows [i·B/m, (i+1)·B/m) of the batch.
    Returns:
        ``(y, saved)``. y is the output, (B, D), on the last stage; None on all other stages. saved
        has the tensors that this stage's backward pass needs: for each micro-batch and each layer
        of the stage a pair ``(x, z)``, the layer's input and x @ W, both (B/m, D).
    Raises:
        ValueError: m is not positive (the message contains m), or m does not divide B ("a batch of
            10 does not divide into 4 micro-batches").

    With 2 stages of one layer [[1]] each, x [[1], [2]] and m = 2:  stage 0 sends [[0.8413]], then
    [[1.9545]]; stage 1 returns y = [[0.6730], [1.9050]].
    About 15 lines.
    """
    raise NotImplementedError("Problem 5.2: pipeline_forward")


def pipeline_backward(weights: list[Tensor], saved: list[Saved], y: Tensor | None) -> list[Tensor]:
    """Problem 5.3 · Run the backward pass through all stages, in micro-batches.

    The backward pass goes from the last stage to the first. The last stage begins with the gradient
    of the loss with respect to its output. All other stages receive the gradients of their outputs
    from the next stages. Send each gradient to the previous stage as soon as it is ready. On every
    stage, also on the first one, compute with each message before you wait for the next message.
    The gradients of the weights are *sums* over the micro-batches. The division by B·D happens
    once: ``mlp.loss_backward(y)`` of the whole y contains it, so do not divide by m again. (Problem
    5.5 differs: it sees one micro-batch's y at a time, so there you must divide by m.)

    Args:
        weights: the k weights of this stage, (D, D) each.
        saved: what ``pipeline_forward`` returned on this stage: m lists of k pairs ``(x, z)``, all
            (B/m, D).
        y: (B, D), the output, on the last stage; None on all other stages.
    Returns:
        k tensors of shape (D, D): the gradients of ``mlp.loss(y)`` of the whole batch with respect
        to this stage's weights.

    With 1 stage, one layer [[1]], two micro-batches x [[1]] and [[2]]:  y = [[0.8413], [1.9545]].
    The loss's gradient is y itself (2y/2). The weight's gradient is 0.8413·1.0833·1 +
    1.9545·1.0852·2 = [[5.1536]].
    About 15 lines.
    """
    raise NotImplementedError("Problem 5.3: pipeline_backward")


def gpipe_schedule(stage: int, num_stages: int, num_micro_batches: int) -> list[Action]:
    """Problem 5.4 · Return the GPipe schedule [Huang et al., 2019].

    All forward passes come first, then all backward passes. GPipe is simple, but at the end of the
    last forward pass, the activations of all micro-batches are alive. Nothing is communicated here.

    Args:
        stage: s, the stage whose schedule this is.
        num_stages: the number of stages.
        num_micro_batches: m. It can be in the thousands.
    Returns:
        2m actions: ``("forward", i)`` and ``("backward", i)`` once for each micro-batch i. All
        stages do the forward passes in the same order. All stages do the backward passes in the
        same order, which may differ from the order of the forward passes. The schedules of all
        stages fit each other: they can be executed together without a deadlock.
    Raises:
        ValueError: ``stage`` is not one of the stages (the message contains ``stage``); there is no
            micro-batch (the message contains m).

    ``gpipe_schedule(0, 2, 2)``  →  for instance [("forward", 0), ("forward", 1), ("backward", 0),
    ("backward", 1)].
    About 5 lines.
    """
    raise NotImplementedError("Problem 5.4: gpipe_schedule")


def one_forward_one_backward_schedule(
    stage: int, num_stages: int, num_micro_batches: int
) -> list[Action]:
    """Problem 5.4 · Return the 1F1B schedule [Narayanan et al., 2019; 2021].

    1F1B is as fast as GPipe, and keeps fewer activations alive. Each backward pass comes as early
    as possible, and frees its activations. A stage works in three phases. In the warm-up it runs
    forward passes until each later stage has a micro-batch, or until there are no more
    micro-batches. Then it runs one forward pass and one backward pass in turn. In the cool-down it
    runs the remaining backward passes. (This is PipeDream-Flush. The first PipeDream runs without a
    cool-down, and keeps several versions of the weights.)

    Args:
        stage, num_stages, num_micro_batches: as in ``gpipe_schedule``.
    Returns:
        2m actions, as in ``gpipe_schedule``, and two more conditions hold:
        - At any time, at most ``num_stages − stage`` micro-batches are alive. A micro-batch is
          alive between its forward pass and its backward pass.
        - In a simulation with equally fast stages, the schedules end as early as those of GPipe:
          after m + num_stages − 1 times the time of one forward and one backward pass.
    Raises:
        ValueError: as in ``gpipe_schedule``.

    ``one_forward_one_backward_schedule(0, 2, 3)``  →  for instance [("forward", 0), ("forward", 1),
    ("backward", 0), ("forward", 2), ("backward", 1), ("backward", 2)].
    About 10 lines.
    """
    raise NotImplementedError("Problem 5.4: one_forward_one_backward_schedule")


def run_schedule(
    schedule: list[Action],
    weights: list[Tensor],
    x: Tensor | None,
    batch_size: int,
    num_micro_batches: int,
    timeline: Timeline,
) -> tuple[Tensor | None, list[Tensor]]:
    """Problem 5.5 · Run one training step, forward and backward, in the order of a schedule.

    Any schedules that fit each other must run, not only GPipe and 1F1B. The earlier stages can be
    at their third forward pass while the last stage is at its first backward pass. So two
    neighbours can start to send to each other at the same moment. Do not wait for a send directly
    after you have started it: the other stage is perhaps sending, too, and not yet receiving. (The
    list below says when to wait.)

    GPipe and 1F1B must also run on GPUs, where the messages of a rank keep their order and a send
    ends only when its message is received. So when an action ends, start two messages together,
    with one ``dist.batch_isend_irecv`` (see Problem 1.6): what this action sends, and what the next
    action receives. Start them before the next action computes. (Before the first action, start
    what this action receives, if anything.) Do not start them in another thread, because it might
    start them too late. Compute each action before you wait for the messages of later actions.
    ``batch_isend_irecv`` returns a list of ``Work``. With gloo the list has one ``Work`` for each
    message, in the order of the messages. With nccl it has a single ``Work`` for all messages
    together. So put the receive last: then the last ``Work`` of the list is that of the receive,
    and the first is that of the send. (If there is only one message, the list has only its
    ``Work``.)

    With 1F1B, a stage's memory must not grow with m. So free
    - the saved tensors of a micro-batch, after its backward pass. A local variable that still
      refers to these tensors keeps them alive, too;
    - received tensors and outputs, as soon as they are not needed. (Stage 0 may copy its batch
      once.)
    - each tensor that was sent. It stays alive until you have called ``wait()`` of the send's
      ``Work``, and have dropped the ``Work``: remove the ``Work`` from your list or dict. When the
      gradient of micro-batch i has come back, wait for the send of the activation of micro-batch i:
      this ``wait()`` returns immediately. Just before you send a gradient, wait for the send of the
      previous gradient. At the end, wait for the remaining sends.

    Call ``wait()`` of each ``Work`` once: with gloo, a second call for a send or a receive waits
    until the timeout of the group, 30 minutes. (With nccl a second call returns immediately, so you
    may wait twice for the one ``Work`` of both messages.) ``is_completed()`` does not replace
    ``wait()``: with gloo, ``is_completed()`` of a send or a receive stays False until you call
    ``wait()``.

    Args:
        schedule: this stage's actions, in order. The schedules of all stages fit each other, as in
            ``gpipe_schedule``.
        weights, x, batch_size, num_micro_batches: as in ``pipeline_forward``.
        timeline: record each action in it once. Put ``with timeline.span(kind, i):`` around the
            computation of the layers, but not around receiving or waiting. On the last stage, the
            loss and the loss's gradient are part of the computation.
    Returns:
        ``(loss, gradients)``. The loss is that of the whole batch, a tensor without dimensions, on
        the last stage; None on all other stages. The gradients are those of this loss with respect
        to this stage's weights, (D, D) each.
    Raises:
        ValueError: as in ``pipeline_forward``; or the schedule does not contain each micro-batch
            once forward and once backward (the message contains m: "a schedule of 6 actions for 4
            micro-batches").

    About 40 lines, or 55 with the code of the two passes through the layers.
    """
    raise NotImplementedError("Problem 5.5: run_schedule")


def bubble_fraction(num_stages: int, num_micro_batches: int) -> float:
    """Problem 5.6 · Return the bubble in theory.

    The bubble is the fraction of the total time that a stage waits, averaged over the stages. The
    result is the same for GPipe and 1F1B. Assume that all forward passes take the same time, that
    all backward passes take the same time, and that messages take no time. It makes no difference
    whether a backward pass takes longer than a forward pass.

    Returns:
        A number from 0 to 1: idle time / total time. (Some papers use idle time / ideal time, which
        is larger.)
    Raises:
        ValueError: there is no stage, or no micro-batch (the message contains the number that is
            not positive).

    ``bubble_fraction(4, 4)``  →  3/7.
    About 3 lines.
    """
    raise NotImplementedError("Problem 5.6: bubble_fraction")


def measured_bubble(timelines: list[list[Span]]) -> float:
    """Problem 5.6 · Return the bubble that was measured, from the spans that the stages recorded.

    The bubble is the same fraction as in ``bubble_fraction``. Nothing is communicated.

    Args:
        timelines: for each stage its spans, ``Span(kind, micro_batch, start, end)``, in any order.
            Spans of a stage do not overlap. A span is work, everything else is waiting. All stages
            have the same total time: from the first start to the last end of *any* stage. It is
            not 0.
    Returns:
        A number from 0 to 1: idle time of all stages / total time of all stages.
    Raises:
        ValueError: no stage recorded a span.

    With two stages that work from 0 to 2 and from 1 to 3 seconds:  each waits for 1 of 3 seconds,
    so the result is 1/3.
    About 6 lines.
    """
    raise NotImplementedError("Problem 5.6: measured_bubble")
