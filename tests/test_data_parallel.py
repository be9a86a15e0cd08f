"""Part 3 · Data parallelism: the public checks.

Run one problem with ``make test PART=data_parallel K=buckets``.
"""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check.api import Delay, Leaf, Strided, Tolerance, call, per_rank, rounding, tensor
from grader.reference import single_device
from grader.reference.collective_mistakes import MEMORY
from grader.reference.training_mistakes import (
    ALONE_ON_RANK,
    PASSED_BY,
    STRIDED_LEFT_OUT,
    left_out,
    loss_mistakes,
    optimizer_difference,
    step_mistakes,
    training_mistakes,
)

# There are 8 rows of 3 columns, and 2 layers. The numbers are such that no other factor can be
# mistaken for the number of ranks, which is 2.
BATCH = np.arange(24, dtype=np.float64).reshape(8, 3) / 20
WEIGHTS = [
    np.array([[1.0, -0.5, 0.0], [0.5, 1.0, 0.5], [0.0, 0.5, -1.0]]),
    np.array([[0.5, 1.0, 0.0], [-1.0, 2.0, 0.5], [1.0, 0.0, 0.5]]),
]
HALVES = np.split(BATCH, 2)
# Rank 1 begins when rank 0 has returned, or when rank 0 waits for rank 1.
LATE = {1: Delay(until="", on=0, patience=1)}
CLOSE = rounding(np.float64)


@number("3.1")
@weight(0.5)
def test_shard_batch(world):
    """shard_batch returns two rows of four on each of two ranks"""
    run, odd = world(
        2,
        call("data_parallel.shard_batch", tensor([[1], [2], [3], [4]])),
        call("data_parallel.shard_batch", tensor([[1], [2], [3]]), may_raise=True),
    )
    known = [
        {"every n-th row was taken. Take consecutive rows": tensor([[1 + rank], [3 + rank]])}
        for rank in range(2)
    ]
    run.returns([[1.0], [2.0]], [[3.0], [4.0]], known_mistakes=known)
    odd.raises_value_error("3", "2")


@number("3.2")
@weight(0.5)
def test_broadcast_parameters(world):
    """broadcast_parameters overwrites rank 1's parameters with rank 0's, whatever their layout"""
    mine, yours = [tensor([1, 2]), tensor([[3.0]])], [tensor([7, 8]), tensor([[9.0]])]
    given = per_rank(*([Leaf(trained), frozen] for trained, frozen in (mine, yours)))
    # A parameter that is contiguous on no rank: a transpose on one, a slice on the other.
    matrices = tensor([[1, 2, 3], [4, 5, 6]]), tensor([[7, 8, 9], [10, 11, 12]])
    strided = per_rank([Strided(matrices[0], "transpose")], [Strided(matrices[1], "slice")])
    # The root begins when rank 1 has returned, or when rank 1 waits for the root.
    late = {0: Delay(until="", on=1, patience=1)}
    name = "data_parallel.broadcast_parameters"
    run, of_strided = world(2, call(name, given, root=0, delays=late), call(name, strided, root=0))
    mean = {
        "this is the mean over the ranks. Every rank must get the root's own values": [
            (m + y) / 2 for m, y in zip(mine, yours)
        ]
    }
    known = [
        left_out(found, own, mine, {1}, set()) | mean
        for found, own in zip(run.first_arguments(), (mine, yours))
    ]
    run.leaves_arguments(
        mine, mine, label="the list of parameters after the call", known_mistakes=known
    )
    run.returns(None, None)
    # A transpose lies in memory column by column.
    by_columns = matrices[0].ravel("F").reshape(matrices[0].shape)
    known = [{}, {STRIDED_LEFT_OUT: [matrices[1]], MEMORY: [by_columns]}]
    label = "the list of a parameter that is not contiguous"
    of_strided.leaves_arguments([matrices[0]], [matrices[0]], label=label, known_mistakes=known)


@number("3.3")
@weight(1.5)
def test_data_parallel_step(world):
    """data_parallel_step returns each rank's own loss and the gradients of the whole batch, on two
    ranks
    """
    (run,) = world(
        2, call("data_parallel.data_parallel_step", WEIGHTS, per_rank(*HALVES), delays=LATE)
    )
    _, gradients = single_device.loss_and_gradients(WEIGHTS, BATCH)
    local = [single_device.loss_and_gradients(WEIGHTS, half) for half in HALVES]
    means = loss_mistakes(gradients, *HALVES[0].shape)
    known = [own | means for own in step_mistakes([own for _, own in local])]
    run.returns(
        gradients,
        gradients,
        tolerance=CLOSE,
        select=lambda r: r[1],
        label="the list of gradients",
        known_mistakes=known,
    )
    losses = [np.array(loss) for loss, _ in local]
    known = [
        {
            "this is the average over the ranks. Return this rank's own loss": np.array(
                sum(losses) / 2
            )
        }
        for _ in losses
    ]
    for own, loss in zip(known, losses):
        own |= {
            sentence: value
            for sentence, (value,) in loss_mistakes([loss], *HALVES[0].shape).items()
        }
    run.returns(
        *losses,
        tolerance=CLOSE,
        select=lambda r: r[0],
        label="the local loss",
        known_mistakes=known,
    )
    run.keeps_inputs()


@number("3.4")
@weight(1.0)
def test_train(world):
    """train ends three steps on two ranks with the weights of a single device"""
    batches = [BATCH, BATCH[::-1] + 0.3, BATCH * 0.5]
    shards = [list(halves) for halves in zip(*(np.split(batch, 2) for batch in batches))]
    (run,) = world(2, call("data_parallel.train", WEIGHTS, per_rank(*shards), lr=0.01, delays=LATE))
    for value in run.values():
        difference = (
            optimizer_difference(value[1])
            if isinstance(value, (list, tuple)) and len(value) == 2
            else None
        )
        run.require(difference is None, difference)
    weights, losses, _ = single_device.adamw(WEIGHTS, batches, lr=0.01)
    tolerance = Tolerance(
        5e-10, "three AdamW steps in float64: a tiny gradient's rounding moves a whole step"
    )
    run.leaves_arguments(
        *[weights] * 2,
        label="the list of weights",
        tolerance=tolerance,
        known_mistakes=lambda: training_mistakes(WEIGHTS, shards, lr=0.01)[0],
    )
    run.returns(
        *[np.array(losses)] * 2,
        tolerance=tolerance,
        select=lambda r: r[0],
        label="the tensor of losses",
        known_mistakes=lambda: training_mistakes(WEIGHTS, shards, lr=0.01)[1],
    )


@number("3.5")
@weight(1.0)
def test_gradient_buckets(world):
    """After backward and wait, the gradients on two ranks are those of the whole batch"""
    (run,) = world(
        2,
        call(
            "data_parallel.GradientBuckets",
            driver="backward_passes",
            weights=WEIGHTS,
            registered=[0, 1],
            frozen=[],
            squared=[],
            bucket_bytes=72,  # one gradient of 3 × 3 float64
            passes=per_rank(*([(half, [0, 1])] for half in HALVES)),
            # Rank 1 begins when rank 0 has read its gradients, or when rank 0 waits for rank 1.
            delays={1: Delay(until="pass ended", on=0, at="backward began", patience=1)},
        ),
    )
    _, gradients = single_device.loss_and_gradients(WEIGHTS, BATCH)
    local = [single_device.loss_and_gradients(WEIGHTS, half)[1] for half in HALVES]
    known = [{sentence: [left] for sentence, left in own.items()} for own in step_mistakes(local)]
    for rank, own in enumerate(known):
        if run.marks(rank, "gone through again"):
            own[PASSED_BY] = own.pop(ALONE_ON_RANK)
    label = "the gradients, [pass][weight],"
    run.returns([gradients], [gradients], tolerance=CLOSE, label=label, known_mistakes=known)
