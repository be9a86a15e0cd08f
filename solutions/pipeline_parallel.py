"""Part 5 · Pipeline parallelism (25 points): every rank has some of the layers, and the batch flows through all ranks.

    make test PART=pipeline_parallel                              judge this file
    python -m handout.run pipeline_parallel --world-size 4        watch four stages work, and wait

Rank s holds stage s: a run of consecutive layers, with s = 0 the first. A stage sends its output to the next one, and in the
backward pass the gradient of its input to the one before. With the batch as a whole, all stages but one would always be
waiting. So the batch is cut into m micro-batches of equal size that follow each other through the pipeline, and the
gradients of a stage's weights add up over the micro-batches.

The loss is the mean over *all* entries of the output: of a micro-batch's y it sees 1/m, so

    loss = (1/m) Σᵢ mlp.loss(yᵢ),    the gradient of the loss with respect to yᵢ  =  (1/m) mlp.loss_backward(yᵢ).

``n = dist.get_world_size()`` is the number of stages, ``s = dist.get_rank()``. For every function here:
- what travels between neighbours is one tensor of (B/m, D) for each micro-batch, by send and receive; nothing else does;
- inputs keep their values, may be non-contiguous, and are float32 or float64; results have their dtype;
- it works for 1, 2, 3, 4, … stages of one layer or more, in unequal numbers, for any m ≥ 1, and when it is called twice
  with the same arguments: it does not use them up;
- misuse, which is the same on every rank, raises ``ValueError`` before anything is sent, with a message that holds the number
  that is wrong, or the two that do not fit each other.
"""

import torch
import torch.distributed as dist
from torch import Tensor

from handout import mlp
from handout.timeline import Span, Timeline

Action = tuple[str, int]  # ("forward", 0): the forward pass of micro-batch 0 through a stage; or ("backward", 0)
Saved = list[tuple[Tensor, Tensor]]  # for each layer of a stage (x, z): its input, and x @ W


def split_layers(num_layers: int, num_stages: int) -> list[range]:
    """Problem 5.1 · Cut the layers into stages, as evenly as can be.

    Args:
        num_layers: L, for the layers 0 … L−1.
        num_stages: the number of stages.
    Returns:
        For each stage the range of its layers: consecutive, none left out, none empty; the first L mod ``num_stages`` stages
        have one layer more than the others.
    Raises:
        ValueError: there is no stage ("there must be a stage, not 0"), or there are more stages than layers ("2 layers cannot
            be cut into 3 stages").

    ``split_layers(5, 3)``  →  [range(0, 2), range(2, 4), range(4, 5)].
    About 6 lines.
    """
    # BEGIN SOLUTION 5.1: split_layers
    if not 1 <= num_stages <= num_layers:
        raise ValueError(f"{num_layers} layers cannot be cut into {num_stages} stages")
    each, remainder = divmod(num_layers, num_stages)
    bounds = [stage * each + min(stage, remainder) for stage in range(num_stages + 1)]
    return [range(first, end) for first, end in zip(bounds, bounds[1:])]
    # END SOLUTION


# BEGIN SOLUTION
def _micro_batch_rows(batch_size: int, num_micro_batches: int) -> int:
    if num_micro_batches < 1 or batch_size % num_micro_batches:
        raise ValueError(f"a batch of {batch_size} does not divide into {num_micro_batches} micro-batches")
    return batch_size // num_micro_batches


def _stage_forward(weights: list[Tensor], x: Tensor) -> tuple[Tensor, Saved]:
    """One micro-batch through the layers of this stage: its output, and what the backward pass needs."""
    saved = []
    for weight in weights:
        y, z = mlp.layer_forward(x, weight)
        saved.append((x, z))
        x = y
    return x, saved


def _stage_backward(weights: list[Tensor], saved: Saved, grad_y: Tensor, totals: list[Tensor]) -> Tensor:
    """One micro-batch back through this stage: adds to the weights' gradients, returns that of the stage's input.

    The calculus of ``mlp.layer_backward``, except that a product is added to its total as it is computed: a further (D, D)
    tensor for every micro-batch and layer would cost as much as the product itself.
    """
    for weight, (x, z), total in zip(reversed(weights), reversed(saved), reversed(totals)):
        grad_z = torch.ops.aten.gelu_backward(grad_y, z)
        total.addmm_(x.T, grad_z)
        grad_y = grad_z @ weight.T
    return grad_y


def _receive(rows: int, like: Tensor, source: int) -> Tensor:
    """(rows, D), from a neighbour, where ``like`` has D columns."""
    received = like.new_empty(rows, like.shape[1])
    dist.recv(received, src=source)
    return received


# END SOLUTION
def pipeline_forward(
    weights: list[Tensor], x: Tensor | None, batch_size: int, num_micro_batches: int
) -> tuple[Tensor | None, list[Saved]]:
    """Problem 5.2 · Forward through all stages, in micro-batches.

    A micro-batch goes on to the next stage as soon as it is ready, before this stage turns to the next one.

    Args:
        weights: the k weights of this stage, (D, D) each, in the order of the layers.
        x: (B, D), the whole batch, on stage 0; None on all others.
        batch_size: B, on every stage.
        num_micro_batches: m. Micro-batch i is rows [i·B/m, (i+1)·B/m) of the batch.
    Returns:
        ``(y, saved)``: y, (B, D), the output of the last stage, there; None on all others. And on every stage what its backward
        pass needs: for each micro-batch, for each layer of the stage, ``(x, z)``: its input and x @ W, both (B/m, D).
    Raises:
        ValueError: m is not positive (m is the wrong number), or B does not divide by m ("a batch of 10 does not divide into 4
            micro-batches").

    With 2 stages of one layer [[1]] each, x [[1], [2]] and m = 2:  stage 0 sends [[0.8413]], then [[1.9545]]; stage 1 returns
    y = [[0.6730], [1.9050]].
    About 15 lines.
    """
    # BEGIN SOLUTION 5.2: pipeline_forward
    rows = _micro_batch_rows(batch_size, num_micro_batches)
    stage, last_stage = dist.get_rank(), dist.get_world_size() - 1
    outputs, saved, sends = [], [], []
    for i in range(num_micro_batches):
        x_i = x[i * rows :][:rows] if stage == 0 else _receive(rows, weights[0], stage - 1)
        y_i, saved_i = _stage_forward(weights, x_i)
        saved.append(saved_i)
        if stage == last_stage:
            outputs.append(y_i)
        else:
            sends.append(dist.isend(y_i, dst=stage + 1))  # the next micro-batch does not wait for the next stage
    for send in sends:
        send.wait()
    return torch.cat(outputs) if stage == last_stage else None, saved
    # END SOLUTION


def pipeline_backward(weights: list[Tensor], saved: list[Saved], y: Tensor | None) -> list[Tensor]:
    """Problem 5.3 · Backward through all stages, from the last to the first, in micro-batches.

    The last stage begins with the gradient of the loss with respect to its output; every other stage receives its own from the
    stage after it. A gradient goes on to the stage before as soon as it is ready. The gradients of the weights are *sums*
    over the micro-batches. The division by B·D happens once: ``mlp.loss_backward(y)`` of the whole y has it, so do not
    divide by m again. (Problem 5.5 differs: it sees one micro-batch's y at a time, so there you must divide by m.)

    Args:
        weights: the k weights of this stage, (D, D) each.
        saved: as ``pipeline_forward`` returns it on this stage: m lists of k pairs ``(x, z)``, all (B/m, D).
        y: (B, D), the output, on the last stage; None on all others.
    Returns:
        k tensors of shape (D, D): the gradients of this stage's weights for ``mlp.loss(y)`` of the whole batch.

    With 1 stage, one layer [[1]], two micro-batches x [[1]] and [[2]]:  y = [[0.8413], [1.9545]]; the loss's gradient is y
    itself (2y/2); the layer's is 0.8413·1.0833·1 + 1.9545·1.0852·2 = [[5.1536]].
    About 15 lines.
    """
    # BEGIN SOLUTION 5.3: pipeline_backward
    stage, last_stage = dist.get_rank(), dist.get_world_size() - 1
    rows = len(saved[0][0][0])
    totals, sends = [torch.zeros_like(weight) for weight in weights], []
    grad_loss = mlp.loss_backward(y) if stage == last_stage else None
    for i, saved_i in enumerate(saved):
        grad_y = grad_loss[i * rows :][:rows] if stage == last_stage else _receive(rows, weights[0], stage + 1)
        grad_x = _stage_backward(weights, saved_i, grad_y, totals)
        if stage > 0:
            sends.append(dist.isend(grad_x, dst=stage - 1))
    for send in sends:
        send.wait()
    return totals
    # END SOLUTION


# BEGIN SOLUTION
def _check_stage(stage: int, num_stages: int, num_micro_batches: int) -> None:
    if not 0 <= stage < num_stages:
        raise ValueError(f"stage {stage} is not one of {num_stages}")
    if num_micro_batches < 1:
        raise ValueError(f"a schedule needs a micro-batch, not {num_micro_batches}")


# END SOLUTION
def gpipe_schedule(stage: int, num_stages: int, num_micro_batches: int) -> list[Action]:
    """Problem 5.4 · GPipe: all forward passes, then all backward passes [Huang et al., 2019]. Nothing is communicated.

    Simple; but every micro-batch's activations stay alive until the last one has gone forward.

    Args:
        stage: s, whose schedule this is.
        num_stages: the number of stages.
        num_micro_batches: m.
    Returns:
        2m actions: ``("forward", i)`` and ``("backward", i)`` once for each micro-batch i. All stages have the forward passes in one
        and the same order, and the backward passes in one and the same order, which may be another. And the stages'
        schedules fit each other: every action can be carried out when its turn comes.
    Raises:
        ValueError: ``stage`` is not one of the stages (name ``stage``); there is no micro-batch (name m).

    ``gpipe_schedule(0, 2, 2)``  →  for instance [("forward", 0), ("forward", 1), ("backward", 0), ("backward", 1)].
    About 5 lines.
    """
    # BEGIN SOLUTION 5.4: gpipe_schedule
    _check_stage(stage, num_stages, num_micro_batches)
    return [(kind, i) for kind in ("forward", "backward") for i in range(num_micro_batches)]
    # END SOLUTION


def one_forward_one_backward_schedule(stage: int, num_stages: int, num_micro_batches: int) -> list[Action]:
    """Problem 5.4 · 1F1B: as GPipe, in the same time, with fewer activations alive [Narayanan et al., 2019; 2021].

    Each backward pass comes as early as it can, and frees its activations: a stage first fills the stages after it
    (warm-up: as many forward passes as that takes, or all that there are), then takes turns, one forward pass and one backward
    pass, and finally empties them (cool-down).

    Args:
        stage, num_stages, num_micro_batches: as in ``gpipe_schedule``.
    Returns:
        2m actions, as ``gpipe_schedule``, of which two more things are true:
        - at no time are more than ``num_stages − stage`` micro-batches alive, that is, forward but not yet backward;
        - where all stages work side by side, the whole is over as early as with GPipe: after m + num_stages − 1 times the
          time of a forward and a backward pass.
    Raises:
        ValueError: as ``gpipe_schedule``.

    ``one_forward_one_backward_schedule(0, 2, 3)``  →  for instance [("forward", 0), ("forward", 1), ("backward", 0),
    ("forward", 2), ("backward", 1), ("backward", 2)].
    About 10 lines.
    """
    # BEGIN SOLUTION 5.4: one_forward_one_backward_schedule
    _check_stage(stage, num_stages, num_micro_batches)
    warm_up = min(num_stages - stage - 1, num_micro_batches)
    actions = [("forward", i) for i in range(warm_up)]
    for i in range(warm_up, num_micro_batches):
        actions += [("forward", i), ("backward", i - warm_up)]
    return actions + [("backward", i) for i in range(num_micro_batches - warm_up, num_micro_batches)]
    # END SOLUTION


def run_schedule(
    schedule: list[Action],
    weights: list[Tensor],
    x: Tensor | None,
    batch_size: int,
    num_micro_batches: int,
    timeline: Timeline,
) -> tuple[Tensor | None, list[Tensor]]:
    """Problem 5.5 · One step of training, forward and backward, in the order of a schedule.

    Any schedules that fit each other must run, not only GPipe and 1F1B: the stages before the last may be at their third
    forward pass while the last one is at its first backward pass, so neighbours may want to send to each other at the same moment.

    What a micro-batch has saved must be gone after its backward pass, else 1F1B saves nothing; a local variable that still
    names it keeps it alive, too. So must what was sent. With ``work = dist.isend(…)`` a tensor lives until you call
    ``work.wait()``; call it once, a second one never comes back (``is_completed()`` alone never comes true with gloo). A good
    moment for the activation of micro-batch i is when its gradient has come back: then the wait is over at once. For a
    gradient, it is before the next one is sent.

    Args:
        schedule: this stage's actions, in order. The stages' schedules fit each other, as those of ``gpipe_schedule`` do.
        weights, x, batch_size, num_micro_batches: as in ``pipeline_forward``.
        timeline: record each action in it, once, in ``with timeline.span(kind, i):`` around the computing (the layers; on the last
            stage also the loss, and in the backward pass its gradient), not around receiving or waiting.
    Returns:
        ``(loss, gradients)``: on the last stage the loss of the whole batch, a tensor without dimensions; None on all
        others. And the gradients of this stage's weights for it, (D, D) each.
    Raises:
        ValueError: as ``pipeline_forward``; or the schedule does not hold each micro-batch once forward and once backward
            (m is in the message: "a schedule of 6 actions for 4 micro-batches").

    About 25 lines.
    """
    # BEGIN SOLUTION 5.5: run_schedule
    rows = _micro_batch_rows(batch_size, num_micro_batches)
    if sorted(schedule) != [(kind, i) for kind in ("backward", "forward") for i in range(num_micro_batches)]:
        raise ValueError(
            f"a schedule of {len(schedule)} actions for {num_micro_batches} micro-batches, each once: {schedule}"
        )
    stage, last_stage = dist.get_rank(), dist.get_world_size() - 1
    totals = [torch.zeros_like(weight) for weight in weights]
    losses = []
    alive: dict[int, Saved] = {}  # what each micro-batch has saved, between its forward and its backward pass
    grad_outputs: dict[int, Tensor] = {}  # on the last stage, as long
    sending: dict[int, dist.Work] = {}  # to the next stage, as long
    sending_back: dist.Work | None = None  # to the stage before: one at a time
    for kind, i in schedule:
        if kind == "forward":
            x_i = x[i * rows :][:rows] if stage == 0 else _receive(rows, weights[0], stage - 1)
            with timeline.span(kind, i):
                y_i, alive[i] = _stage_forward(weights, x_i)
                if stage == last_stage:
                    losses.append(mlp.loss(y_i))
                    grad_outputs[i] = mlp.loss_backward(y_i) / num_micro_batches
            if stage < last_stage:
                # Never wait here: the next stage may itself be sending, and this one not yet receiving.
                sending[i] = dist.isend(y_i, dst=stage + 1)
        else:
            grad_y = grad_outputs.pop(i) if stage == last_stage else _receive(rows, weights[0], stage + 1)
            if stage < last_stage:
                sending.pop(i).wait()  # at once: whoever has sent the gradient has received the activation
            with timeline.span(kind, i):
                grad_x = _stage_backward(weights, alive.pop(i), grad_y, totals)
            if stage > 0:
                if sending_back:
                    sending_back.wait()
                sending_back = dist.isend(grad_x, dst=stage - 1)
    if sending_back:
        sending_back.wait()
    return torch.stack(losses).mean() if stage == last_stage else None, totals
    # END SOLUTION


def bubble_fraction(num_stages: int, num_micro_batches: int) -> float:
    """Problem 5.6 · The bubble in theory: the part of the whole time in which a stage waits, on average over the stages.

    For GPipe and 1F1B alike, where a forward pass takes the same time on all stages, and so does a backward pass, and messages
    take none. Whether a backward pass takes longer than a forward pass makes no difference.

    Returns:
        A number from 0 to 1: idle time / total time (some write idle time / ideal time, which is larger).
    Raises:
        ValueError: there is no stage, or no micro-batch (name the number that is not positive).

    ``bubble_fraction(4, 4)``  →  3/7.
    About 3 lines.
    """
    # BEGIN SOLUTION 5.6: bubble_fraction
    _check_stage(0, num_stages, num_micro_batches)
    return (num_stages - 1) / (num_micro_batches + num_stages - 1)
    # END SOLUTION


def measured_bubble(timelines: list[list[Span]]) -> float:
    """Problem 5.6 · The bubble as it was: the same part, from what each stage recorded. Nothing is communicated.

    Args:
        timelines: for each stage its spans, ``Span(kind, micro_batch, start, end)``, in any order; they do not overlap. A span is
            work, all else is waiting, from the first start to the last end of *any* stage.
    Returns:
        A number from 0 to 1: idle time of all stages / total time of all stages.
    Raises:
        ValueError: no stage recorded a span.

    With two stages that work from 0 to 2 and from 1 to 3 seconds:  each waits for 1 of 3 seconds, 1/3.
    About 6 lines.
    """
    # BEGIN SOLUTION 5.6: measured_bubble
    spans = [span for timeline in timelines for span in timeline]
    if not spans:
        raise ValueError(f"none of {len(timelines)} timelines holds a span")
    total = max(span.end for span in spans) - min(span.start for span in spans)
    return 1 - sum(span.end - span.start for span in spans) / (len(timelines) * total)
    # END SOLUTION
