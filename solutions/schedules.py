"""Part 8 · Better schedules (8 points): two ways to make the bubble of a pipeline smaller.

One way: each stage holds several smaller parts of the model. The other way: the backward pass is
cut into two halves, and one half can wait. This part is extra credit.

    make test PART=schedules                              judge this file
    python -m handout.run schedules --world-size 4        watch four stages work, and wait

A schedule is the list of one stage's actions, in order. Here an action is a tuple ``(kind, chunk,
micro_batch)``, because a stage may hold several chunks of the model:

    ("F", c, i)    the forward pass of micro-batch i through chunk c of this stage
    ("B", c, i)    the gradient of this chunk's input, which the previous part needs
    ("W", c, i)    the gradients of this chunk's weights, at any time after B
    ("BW", c, i)   the whole backward pass, B and W; the gradient is sent after both

With n stages of v chunks each, the model is cut into n·v parts. Chunk c of stage s is part c·n + s.
A micro-batch visits all stages once for each chunk. ``handout/schedule_runner.py`` is given. It
runs schedules, and simulates how long they take.

For every schedule here:
- A schedule contains each of its actions once. Each call returns a new list.
- The micro-batches may come in any order, for example from the last to the first, if the schedule
  satisfies all conditions: those in this list, and those in the docstring of the function.
- The schedules of all stages fit each other: they can be executed together without a deadlock, for
  any durations of F, B and W. A stage does its actions in the order of its list. F of a part needs
  F of the previous part. B and BW of a part need B or BW of the next part. B and BW need F of the
  same part, and W needs B. Messages take no time.
- An activation means all tensors that one micro-batch has saved in one chunk. An activation is
  alive from F to BW, or from F to W.
- Misuse raises ``ValueError``. The message contains the wrong number, or the two numbers that do
  not fit each other.
"""

import torch
from torch import Tensor

Action = tuple[str, int, int]  # (kind, chunk, micro-batch)
Saved = list[tuple[Tensor, Tensor]]  # for each layer of a chunk (x, z): its input, and x @ W
Kept = list[tuple[Tensor, Tensor]]  # for each layer of a chunk (x, grad_z)


# BEGIN SOLUTION
def _check(stage: int, **counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} is {count}, and has to be positive")
    if not 0 <= stage < counts["num_stages"]:
        raise ValueError(f"stage {stage} is not one of {counts['num_stages']}")


# END SOLUTION
def chunk_layers(num_layers: int, stage: int, num_stages: int, num_chunks: int) -> list[range]:
    """Problem 8.1 · Return the layers of each chunk of a stage.

    The model is cut into num_stages · num_chunks parts of equally many consecutive layers.

    Args:
        num_layers: L, for the layers 0 … L−1.
        stage: s, the stage whose layers are returned.
        num_stages: n.
        num_chunks: v, the number of chunks of each stage.
    Returns:
        v ranges of L/(n·v) layers each. Chunk c of stage s is part c·n + s.
    Raises:
        ValueError: ``stage`` is not one of the stages (the message contains ``stage``); a number of
            stages or chunks is less than 1 (the message contains this number); L is not
            positive, or does not divide into n·v parts ("10 layers cannot be cut into 4 parts").

    ``chunk_layers(8, 1, 2, 2)``  →  [range(2, 4), range(6, 8)].
    About 5 lines.
    """
    # BEGIN SOLUTION 8.1: chunk_layers
    _check(stage, num_stages=num_stages, num_chunks=num_chunks)
    parts = num_stages * num_chunks
    if num_layers < 1 or num_layers % parts:
        raise ValueError(f"{num_layers} layers cannot be cut into {parts} parts")
    each = num_layers // parts
    return [range(part * each, (part + 1) * each) for part in range(stage, parts, num_stages)]
    # END SOLUTION


def interleaved_schedule(
    stage: int, num_stages: int, num_chunks: int, num_micro_batches: int
) -> list[Action]:
    """Problem 8.1 · Return the interleaved 1F1B schedule [Narayanan et al., 2021].

    As in 1F1B, a stage first runs forward passes (the warm-up), then one forward and one backward
    pass in turn, then backward passes. But it processes the micro-batches in groups of n, such as 0
    to n − 1 and then n to 2n − 1: all n micro-batches of a group go through the stage's chunk 0,
    then all n go through its chunk 1, and so on. After that comes the next group. The backward
    passes have the same order, but go from the last chunk to the first. A part is 1/v of a stage,
    so the first forward pass is shorter, and the next stages begin earlier.

    Args:
        stage: s, the stage whose schedule this is.
        num_stages: n.
        num_chunks: v, the number of chunks of each stage.
        num_micro_batches: m, a multiple of n.
    Returns:
        2·v·m actions: ``("F", c, i)`` and ``("BW", c, i)`` once for each chunk c and each
        micro-batch i. If all parts take equally long, three more conditions hold:
        - The schedules end after v·m + n − 1 times the time of one F and one BW of a chunk.
        - At any time, at most 2(n − s − 1) + (v − 1)·n + 1 activations are alive on stage s. (If
          v > 1, the warm-up in the paper has 2(n − s − 1) + (v − 1)·n forward passes, or all v·m
          forward passes if these are fewer.)
        - With v = 1 the schedule is 1F1B. Then at most n − s activations are alive.
    Raises:
        ValueError: ``stage`` is not one of the stages (the message contains ``stage``); a number of
            stages, chunks or micro-batches is less than 1 (the message contains this number); n
            does not divide m ("3 micro-batches do not divide into groups of 2").

    ``interleaved_schedule(1, 2, 2, 2)``  →  for instance [("F", 0, 0), ("F", 0, 1), ("F", 1, 0),
    ("BW", 1, 0), ("F", 1, 1), ("BW", 1, 1), ("BW", 0, 0), ("BW", 0, 1)].
    About 15 lines.
    """
    # BEGIN SOLUTION 8.1: interleaved_schedule
    n, v, m = num_stages, num_chunks, num_micro_batches
    _check(stage, num_stages=n, num_chunks=v, num_micro_batches=m)
    if m % n:
        raise ValueError(f"{m} micro-batches do not divide into groups of {n}")
    # the order of the forward passes: group after group, in a group chunk after chunk
    visits = [(c, g + i) for g in range(0, m, n) for c in range(v) for i in range(n)]
    forwards: list[Action] = [("F", c, i) for c, i in visits]
    backwards: list[Action] = [("BW", v - 1 - c, i) for c, i in visits]
    # (v − 1)·n passes bring the first group to its last chunk. One more pass for each later stage
    # would be enough if messages took no time. With two more passes for each later stage, a message
    # can take as long as a pass.
    warm_up = n - stage - 1 if v == 1 else 2 * (n - stage - 1) + (v - 1) * n
    warm_up = min(warm_up, v * m)
    steady = [action for pair in zip(forwards[warm_up:], backwards) for action in pair]
    return forwards[:warm_up] + steady + backwards[v * m - warm_up :]
    # END SOLUTION


def interleaved_bubble(num_stages: int, num_chunks: int, num_micro_batches: int) -> float:
    """Problem 8.1 · Return the bubble of the interleaved schedule, in theory.

    The bubble is idle time / total time, averaged over the stages. Assume that all parts take the
    same time, and that messages take no time.

    Args:
        num_stages, num_chunks, num_micro_batches: n, v, and m, a multiple of n.
    Raises:
        ValueError: a number of stages, chunks or micro-batches is less than 1 (the message contains
            this number), or n does not divide m (the message contains both numbers).

    ``interleaved_bubble(4, 1, 4)``  →  3/7, as for 1F1B;  ``interleaved_bubble(4, 2, 4)``  →  3/11.
    About 4 lines.
    """
    # BEGIN SOLUTION 8.1: interleaved_bubble
    n, v, m = num_stages, num_chunks, num_micro_batches
    _check(0, num_stages=n, num_chunks=v, num_micro_batches=m)
    if m % n:
        raise ValueError(f"{m} micro-batches do not divide into groups of {n}")
    return (n - 1) / (v * m + n - 1)
    # END SOLUTION


def backward_input(weights: list[Tensor], saved: Saved, grad_y: Tensor) -> tuple[Tensor, Kept]:
    """Problem 8.2 · B: return the gradient of a chunk's input, and the tensors that W needs.

    Apply the chain rule of ``mlp.layer_backward``, layer by layer from the last to the first:

        grad_z = grad_y ⊙ gelu′(z),   grad_x = grad_z @ Wᵀ      and grad_W = xᵀ @ grad_z must wait

    ``torch.ops.aten.gelu_backward(grad_y, z)`` is grad_y ⊙ gelu′(z). Compute no gradient of a
    weight here: for each layer, one product of matrices is enough. The checks count these products,
    so multiply with torch, in the thread that calls your function. A check also measures the
    processor time. For one layer with D = 1024, and 128 rows, ``backward_input`` may take at most
    1.5 times as long as the computation of grad_z and grad_x alone. Inputs must stay unchanged.
    They may be non-contiguous, and are float32 or float64.

    Args:
        weights: the k weights of the chunk, (D, D) each, in the order of the layers.
        saved: for each layer ``(x, z)``, both (B/m, D): its input, and x @ W.
        grad_y: (B/m, D), the gradient of the chunk's output.
    Returns:
        ``(grad_x, kept)``. grad_x is the gradient of the chunk's input, (B/m, D). kept has, for
        each layer in the order of the layers, the pair ``(x, grad_z)``: the same tensor x, not a
        copy of it, and the gradient of z. W does not need z, and the caller frees z. So do not keep
        any z, or a copy of it, in memory: neither in a result nor anywhere else.

    With one layer [[2]], x = [[1]], z = [[2]] and grad_y = [[3]]:  gelu′(2) = 1.0852. So grad_z is
    [[3.2557]], grad_x is [[6.5114]], and kept is [([[1]], [[3.2557]])].
    About 6 lines.
    """
    # BEGIN SOLUTION 8.2: backward_input
    kept = []
    for weight, (x, z) in reversed(list(zip(weights, saved))):
        grad_z = torch.ops.aten.gelu_backward(grad_y, z)
        grad_y = grad_z @ weight.T
        kept.append((x, grad_z))
    return grad_y, kept[::-1]
    # END SOLUTION


def backward_weights(kept: Kept) -> list[Tensor]:
    """Problem 8.2 · W: return the gradients of a chunk's weights, from what B has kept.

    Multiply here, with these tensors, and not already in B. Between B and W, the checks add numbers
    to each grad_z in place, so a product from B would be wrong. Inputs must stay unchanged; they
    may be non-contiguous. After the call, keep no input in memory.

    Args:
        kept: for each layer ``(x, grad_z)``, both (B/m, D), as ``backward_input`` returned them.
    Returns:
        For each layer, in the order of the layers, grad_W = xᵀ @ grad_z, (D, D).

    ``backward_weights([([[1]], [[3.2557]])])``  →  [[[3.2557]]].
    About 1 line.
    """
    # BEGIN SOLUTION 8.2: backward_weights
    return [x.T @ grad_z for x, grad_z in kept]
    # END SOLUTION


def zero_bubble_schedule(stage: int, num_stages: int, num_micro_batches: int) -> list[Action]:
    """Problem 8.3 · Return the zero-bubble schedule ZB-H1 [Qi et al., 2024].

    F and B come in the order of 1F1B. The previous stage waits for this stage's B, but not for its
    W. So B sends its gradient immediately, and W runs later, when the stage would otherwise wait.
    Later stages delay W longer: on stage s, a W follows every B except the first s, and the last s
    W come at the end (all W come last if m ≤ s). So at the end, while the last gradients travel
    back, a stage still has W to do.

    Args:
        stage: s, the stage whose schedule this is.
        num_stages: n.
        num_micro_batches: m.
    Returns:
        3m actions: ``("F", 0, i)``, ``("B", 0, i)`` and ``("W", 0, i)`` once for each micro-batch
        i. Three more conditions hold:
        - On stage s, at most n − s micro-batches are between F and B at any time, as in 1F1B.
        - On every stage, at most n activations are alive at any time (from F to W), as on stage 0
          of 1F1B.
        - If F, B and W take the times f, b and w on every stage, the schedules end after at most
          m(f + b + w) + (n − 1)(f + b) − (min(n, m) − 1)·min(f, b, w). For f = b = w and m ≥ n,
          each stage is idle for (n − 1)·f. In 1F1B it is idle for three times as long.
    Raises:
        ValueError: ``stage`` is not one of the stages (the message contains ``stage``); a number of
            stages or micro-batches is less than 1 (the message contains this number).

    ``zero_bubble_schedule(1, 2, 2)``  →  for instance [("F", 0, 0), ("B", 0, 0), ("F", 0, 1),
    ("B", 0, 1), ("W", 0, 0), ("W", 0, 1)]: the last stage sends both gradients before its first W.
    About 12 lines.
    """
    # BEGIN SOLUTION 8.3: zero_bubble_schedule
    _check(stage, num_stages=num_stages, num_micro_batches=num_micro_batches)
    m = num_micro_batches
    warm_up = min(num_stages - stage - 1, m)
    actions: list[Action] = [("F", 0, i) for i in range(warm_up)]
    for i in range(m):
        if i + warm_up < m:
            actions.append(("F", 0, i + warm_up))
        actions.append(("B", 0, i))
        if i >= stage:  # stage s is s weight gradients behind, so n micro-batches are alive
            actions.append(("W", 0, i - stage))
    return actions + [("W", 0, i) for i in range(max(m - stage, 0), m)]
    # END SOLUTION
