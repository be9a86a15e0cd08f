"""Builds models and batches for the checks of problems 3.3 and 3.4, and judges what ranks send."""

import numpy as np

from grader.check.api import Delay, listed
from grader.hidden.given_tensors import drawn_weights, rank_layout
from grader.reference import single_device
from grader.reference.data_parallel import require_average


def many_rows(layers):
    """Return a number of rows of a rank, for a model of this number of layers of width 6.

    A program that gathers these rows exceeds the limit of ``averages_own_gradients``, even if it
    sends only 12 bits for each number.
    """
    return 200 * -(-layers // 3)


def problem(rng, n, layers=3, width=6, rows=5, dtype=np.float64):
    """Return weights, the batch of all ranks, and each rank's shard of the batch.

    The batch is drawn again while gelu is flat: see ``single_device.is_flat``.
    """
    weights = drawn_weights(rng, layers, width, dtype)
    saved = []
    while not saved or single_device.is_flat(saved):
        batch = rng.standard_normal((rows * n, width)).astype(dtype)
        saved = single_device.forward(weights, batch)[1]
    return weights, batch, np.split(batch, n)


def cast(values, dtype):
    return [None if v is None else np.asarray(v, dtype) for v in values]


def late(n, to=0):
    """Return delays that hold all ranks except ``to``.

    The held ranks begin when rank ``to`` has returned, or when rank ``to`` waits for the held
    ranks. After one second, they begin in any case. If rank ``to`` does not wait, it returns before
    it has received anything from the held ranks.
    """
    return {rank: Delay(until="", on=to, patience=1) for rank in range(n) if rank != to}


def averages_own_gradients(run, weights, own_rows):
    """Fail if the ranks send too little to average their gradients, or much more than is needed.

    ``own_rows`` lists the rows of one rank in each step. The upper limit is so high that no right
    program exceeds it. (Another check judges the exact traffic.) But a program that gathers large
    shards exceeds it. Small shards are below the limit anyway, so there is no upper limit for them
    here. ``test_step_traffic`` judges shards of all sizes.
    """
    n, size = run.report.size, len(own_rows) * sum(w.nbytes for w in weights)
    require_average(run, size)
    most = 2 * (n - 1) * size
    if (n - 1) * sum(rows.nbytes for rows in own_rows) <= most:
        return
    for rank in range(n):
        done = run.operations(rank)
        sent = sum(o.traffic for o in done)
        run.require(
            sent <= most,
            f"rank {rank} sends {sent:.0f} bytes, but {most} are more than enough to average all"
            f" gradients ({size} bytes). Each rank computes the gradients of its own rows. Do not"
            f" send rows, weights or activations. (Rank {rank} issued: {listed(done)})",
        )


def memory_orders(n):
    """Return, for each rank, the order in which a gradient of autograd lies in memory.

    The gradient of a transposed weight is transposed, too. If the weight has gaps in memory, its
    gradient is contiguous.
    """
    return ["F" if rank_layout(rank) == "transpose" else "C" for rank in range(n)]
