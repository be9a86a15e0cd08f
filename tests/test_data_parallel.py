"""Part 3 · Data parallelism: the public checks.

Run one problem with ``make test PART=data_parallel K=buckets``.
"""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.face import Tolerance, call, each, rounding, tensor
from grader.judging import truth
from grader.judging.training_mistakes import step_mistakes, training_mistakes

BATCH = np.arange(8, dtype=np.float64).reshape(4, 2) / 10  # 4 rows of 2 columns
WEIGHTS = [np.array([[1.0, -0.5], [0.5, 1.0]]), np.array([[0.5, 1.0], [-1.0, 2.0]])]  # 2 layers
CLOSE = rounding(np.float64)


@number("3.1")
@weight(0.5)
def test_shard_batch(world):
    """Two ranks take two rows each of a batch of four"""
    run, odd = world(
        2,
        call("data_parallel.shard_batch", tensor([[1], [2], [3], [4]])),
        call("data_parallel.shard_batch", tensor([[1], [2], [3]]), may_raise=True),
    )
    known = [{"every n-th row: contiguous rows were asked for": tensor([[1 + rank], [3 + rank]])} for rank in range(2)]
    run.returns([[1.0], [2.0]], [[3.0], [4.0]], lookalikes=known)
    odd.raises_value_error("3", "2")


@number("3.2")
@weight(0.5)
def test_broadcast_parameters(world):
    """Rank 0's parameters overwrite rank 1's"""
    mine, yours = [tensor([1, 2]), tensor([[3.0]])], [tensor([7, 8]), tensor([[9.0]])]
    (run,) = world(2, call("data_parallel.broadcast_parameters", each(mine, yours), root=0))
    run.leaves_arguments(mine, mine, named="the list of parameters after the call")
    run.returns(None, None)


@number("3.3")
@weight(1.5)
def test_data_parallel_step(world):
    """Two ranks' gradients are those of the whole batch, and each returns its own loss"""
    (run,) = world(2, call("data_parallel.data_parallel_step", WEIGHTS, each(BATCH[:2], BATCH[2:])))
    _, gradients = truth.loss_and_gradients(WEIGHTS, BATCH)
    local = [truth.loss_and_gradients(WEIGHTS, half) for half in (BATCH[:2], BATCH[2:])]
    known = step_mistakes([own for _, own in local])
    run.returns(
        gradients, gradients, within=CLOSE, part=lambda r: r[1], named="the list of gradients", lookalikes=known
    )
    losses = [np.array(loss) for loss, _ in local]
    mean = [{"averaged over the ranks; this rank's own was asked for": np.array(sum(losses) / 2)}] * 2
    run.returns(*losses, within=CLOSE, part=lambda r: r[0], named="the local loss", lookalikes=mean)
    run.keeps_inputs()


@number("3.4")
@weight(1.0)
def test_train(world):
    """Two steps on two ranks end with the weights of a single device"""
    batches = [BATCH, BATCH[::-1] + 0.3]
    shards = [[batch[:2] for batch in batches], [batch[2:] for batch in batches]]
    (run,) = world(2, call("data_parallel.train", WEIGHTS, each(*shards), lr=0.01))
    weights, losses, _ = truth.adamw(WEIGHTS, batches, lr=0.01)
    within = Tolerance(5e-10, "two AdamW steps in float64: a tiny gradient's rounding moves a whole step")
    of_weights, of_losses = training_mistakes(WEIGHTS, shards, lr=0.01)
    run.leaves_arguments(weights, weights, named="the list of weights", within=within, lookalikes=of_weights)
    losses, named = np.array(losses), "the tensor of losses"
    run.returns(losses, losses, within=CLOSE, part=lambda r: r[0], named=named, lookalikes=of_losses)


@number("3.5")
@weight(1.0)
def test_gradient_buckets(world):
    """After backward and wait, two ranks hold the gradients of the whole batch"""
    (run,) = world(
        2,
        call(
            "data_parallel.GradientBuckets",
            driver="backward_passes",
            weights=WEIGHTS,
            registered=[0, 1],
            frozen=[],
            squared=[],
            bucket_bytes=32,  # one gradient of 2 × 2 float64
            passes=each([(BATCH[:2], [0, 1])], [(BATCH[2:], [0, 1])]),
        ),
    )
    _, gradients = truth.loss_and_gradients(WEIGHTS, BATCH)
    local = [truth.loss_and_gradients(WEIGHTS, half)[1] for half in (BATCH[:2], BATCH[2:])]
    known = [{sentence: [left] for sentence, left in own.items()} for own in step_mistakes(local)]
    named = "the gradients, [pass][weight],"
    run.returns([gradients], [gradients], within=CLOSE, named=named, lookalikes=known)
