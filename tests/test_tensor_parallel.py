"""Part 4 · Tensor parallelism: the public checks, on two ranks.

Run one problem with ``make test PART=tensor_parallel K=backward``.
"""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check import driver_results
from grader.check.api import RequiresGrad, Strided, call, listed, per_rank, rounding, tensor
from grader.reference import single_device
from grader.reference import tensor_parallel as parts
from grader.reference.collective_mistakes import in_memory_order

BATCH = np.arange(8, dtype=np.float64).reshape(4, 2) / 10  # 4 rows of 2 columns
WEIGHTS = [np.array([[1.0, -0.5], [0.5, 1.0]]), np.array([[0.5, 1.0], [-1.0, 2.0]])]  # 2 layers
# The shards of rank 0, and those of rank 1.
SHARDS = [[weight[:, :1] for weight in WEIGHTS], [weight[:, 1:] for weight in WEIGHTS]]
DEEP = [*WEIGHTS, np.array([[1.0, 0.25], [-0.5, 1.0]])]  # 3 layers
# In the first case, the second weight does not fit the first weight. In the second case, the second
# weight does not fit the number of ranks.
MISFITS = [
    (SHARDS[0][:1] + [np.ones((3, 1))], ("3", "2")),
    (SHARDS[0][:1] + [np.ones((2, 3))], ("3",)),
]
CLOSE = rounding(np.float64)


@number("4.1")
@weight(0.5)
def test_shards(world):
    """shard_columns and shard_rows give each of two ranks its shard, and the shard has memory of
    its own
    """
    whole = tensor([[1, 2, 3, 4], [5, 6, 7, 8]])
    by_columns, by_rows, odd, odd_rows = world(
        2,
        call("tensor_parallel.shard_columns", whole),
        call("tensor_parallel.shard_rows", whole),
        call("tensor_parallel.shard_columns", whole[:, :3], may_raise=True),
        call("tensor_parallel.shard_rows", whole.T[:3], may_raise=True),
    )
    known = parts.every_nth(whole, 2, axis=1)
    by_columns.returns([[1.0, 2.0], [5.0, 6.0]], [[3.0, 4.0], [7.0, 8.0]], known_mistakes=known)
    by_rows.returns([[1.0, 2.0, 3.0, 4.0]], [[5.0, 6.0, 7.0, 8.0]])
    odd.raises_value_error("3", "2")
    odd_rows.raises_value_error("3", "2")
    # Pieces of the last two weights are contiguous in the weight, so contiguous() does not copy
    # them.
    cases = ("columns", whole), ("rows", whole), ("columns", whole[:1]), ("rows", whole[:1].T)
    runs = world(2, *(call(f"tensor_parallel.shard_{by}", w, driver="stored") for by, w in cases))
    for run, (_, weight_) in zip(runs, cases):
        for rank, shard in enumerate(run.read(driver_results.stored, "the memory of the shard")):
            own = weight_.nbytes // 2
            text = f"rank {rank}'s shard has {own} bytes, but keeps {shard.bytes} bytes alive."
            text += " A slice is a view, which keeps the full weight alive. Return a copy:"
            text += " clone(), because contiguous() does not copy a contiguous slice."
            run.require(shard.bytes <= own, text)
            run.require(
                shard.own, f"rank {rank}'s shard shares memory with the weight. Return a copy."
            )


@number("4.2")
@weight(1.0)
def test_forward(world):
    """On two ranks, tensor_parallel_forward returns the replicated output of three layers and saves
    (x, z); each rank uses only its own shards
    """
    shards = [[weight[:, rank : rank + 1] for weight in DEEP] for rank in range(2)]
    (run,) = world(2, call("tensor_parallel.tensor_parallel_forward", per_rank(*shards), BATCH))
    y, saved = single_device.forward(DEEP, BATCH)
    mistakes = parts.forward_mistakes(DEEP, BATCH, 2)
    run.returns(
        y,
        y,
        tolerance=CLOSE,
        select=lambda r: r[0],
        label="the output",
        known_mistakes=[mistakes] * 2,
    )
    own_saved = [[(x, z[:, rank : rank + 1]) for x, z in saved] for rank in range(2)]
    known = [parts.forward_saved_mistakes(own, y) for own in own_saved]
    run.returns(
        *own_saved,
        tolerance=CLOSE,
        select=lambda r: r[1],
        label="the list of (x, z)",
        known_mistakes=known,
    )
    run.keeps_inputs()
    # An all-gather makes the output of each layer. Each of the two ranks sends half of the output.
    least = 3 * y.nbytes // 2
    for rank in range(2):
        done = run.operations(rank)
        sent = sum(operation.traffic for operation in done)
        run.require(
            sent >= least,
            f"rank {rank} sends {sent:.0f} bytes ({listed(done)}), but the outputs of 3 layers need"
            f" at least {least} bytes. Do not send weights: each rank computes with its own shards,"
            " and sends its columns of each output.",
        )


@number("4.2")
@weight(0.25)
def test_forward_misuse(world):
    """tensor_parallel_forward raises ValueError with the numbers if shards do not fit the batch,
    each other or the number of ranks
    """
    name = "tensor_parallel.tensor_parallel_forward"
    # D is 4: each shard has D/n columns, but only 2 rows
    cases = [(WEIGHTS, np.hstack([BATCH, BATCH]), ("2", "4"))]
    cases += [(shards, BATCH, numbers) for shards, numbers in MISFITS]
    calls = (call(name, shards, x, may_raise=True) for shards, x, _ in cases)
    for run, (shards, x, numbers) in zip(world(2, *calls), cases):
        run.raises_value_error(*numbers, given=f"a batch of {x.shape[1]} columns and {_of(shards)}")


def _of(shards):
    return "shards of shapes " + ", ".join(str(shard.shape) for shard in shards)


@number("4.3")
@weight(1.5)
def test_backward(world):
    """The gradients of two layers on two ranks are those of a single device"""
    y, saved = single_device.forward(WEIGHTS, BATCH)
    grad_y = 2 * y / y.size
    own = [[(x, z[:, rank : rank + 1]) for x, z in saved] for rank in range(2)]
    (run,) = world(
        2,
        call("tensor_parallel.tensor_parallel_backward", per_rank(*SHARDS), per_rank(*own), grad_y),
    )
    grad_x, whole = single_device.backward(WEIGHTS, saved, grad_y)
    of_input, of_shards = parts.tensor_mistakes(WEIGHTS, saved, grad_y, 2)
    gradients = [[g[:, rank : rank + 1] for g in whole] for rank in range(2)]
    run.returns(
        *gradients,
        tolerance=CLOSE,
        select=lambda r: r[1],
        label="the list of the shards' gradients",
        known_mistakes=of_shards,
    )
    run.returns(
        grad_x,
        grad_x,
        tolerance=CLOSE,
        select=lambda r: r[0],
        label="the gradient of x",
        known_mistakes=of_input,
    )
    run.keeps_inputs()


@number("4.3")
@weight(0.5)
def test_backward_traffic(world):
    """In the backward pass of three layers, a rank sends the bytes that its sums need, and no more
    than the docstring's “Traffic” allows for full credit
    """
    y, saved = single_device.forward(DEEP, BATCH)
    grad_y = 2 * y / y.size
    own = [[(x, z[:, rank : rank + 1]) for x, z in saved] for rank in range(2)]
    shards = [[weight[:, rank : rank + 1] for weight in DEEP] for rank in range(2)]
    name = "tensor_parallel.tensor_parallel_backward"
    (run,) = world(2, call(name, per_rank(*shards), per_rank(*own), grad_y))
    grad_x, whole = single_device.backward(DEEP, saved, grad_y)
    run.returns(
        *((grad_x, [g[:, rank : rank + 1] for g in whole]) for rank in range(2)),
        tolerance=CLOSE,
        label="the pair of the gradient of x and the list of the shards' gradients",
    )
    # S, the size of grad_y, is 64 bytes. A rank needs to send S/2 bytes between the first and the
    # second layer, S/2 bytes between the second and the third layer, and S bytes at the end.
    enough = 2 * grad_y.nbytes // 2 + grad_y.nbytes
    for rank in range(2):
        done = run.operations(rank)
        sent = sum(operation.traffic for operation in done)
        run.require(
            sent <= enough,
            f"rank {rank} sends {sent:.0f} bytes ({listed(done)}), but {enough} are enough. Which"
            " columns of the sum does a rank need between two layers?",
        )
        run.require(
            sent >= enough,
            f"rank {rank} sends {sent:.0f} bytes ({listed(done)}), but the sums over the ranks need"
            f" at least {enough} bytes. Do not send weights: each rank computes with its own shards"
            " only.",
        )


@number("4.3")
@weight(0.25)
def test_backward_misuse(world):
    """A gradient that does not fit the shards raises ValueError with the numbers"""
    y, saved = single_device.forward(WEIGHTS, BATCH)
    own = per_rank(*([(x, z[:, rank : rank + 1]) for x, z in saved] for rank in range(2)))
    name = "tensor_parallel.tensor_parallel_backward"
    # D is 4: each shard has D/n columns, but only 2 rows
    cases = [(WEIGHTS, np.hstack([y, y]), ("2", "4"))]
    cases += [(shards, y, numbers) for shards, numbers in MISFITS]
    calls = (call(name, shards, own, gradient, may_raise=True) for shards, gradient, _ in cases)
    for run, (shards, gradient, numbers) in zip(world(2, *calls), cases):
        given = f"a gradient of shape {gradient.shape} and {_of(shards)}"
        run.raises_value_error(*numbers, given=given)


@number("4.4")
@weight(1.0)
def test_megatron_pair(world):
    """With a column shard and a row shard, megatron_pair gives the output and the gradients of two
    layers on a single device
    """
    a, b = WEIGHTS
    y, saved = single_device.forward([a, b], BATCH)
    upstream, varied = np.ones_like(y), BATCH[::-1] + 0.5
    # On rank 1, x and the gradient of y are transposes in memory.
    crossed = per_rank(RequiresGrad(BATCH), RequiresGrad(Strided(BATCH, "transpose")))
    given = per_rank(varied, Strided(varied, "transpose"))
    run, f, g = world(
        2,
        call(
            "tensor_parallel.megatron_pair",
            per_rank(RequiresGrad(a[:, :1]), RequiresGrad(a[:, 1:])),
            per_rank(RequiresGrad(b[:1]), RequiresGrad(b[1:])),
            RequiresGrad(BATCH),
            upstream,
            driver="differentiate",
        ),
        *(
            call(f"tensor_parallel.{name}", crossed, given, driver="differentiate")
            for name in ("CopyToRanks", "SumOverRanks")
        ),
    )
    # The wrong sum if the ranks add up entries in memory order.
    lying = {
        name: [
            {parts.AS_IT_LIES: own}
            for own in in_memory_order([x, x], ("C", "F"), lambda xs: [sum(xs)] * 2)
        ]
        for name, x in (("f", varied), ("g", BATCH))
    }
    known = parts.pair_outputs(a, b, BATCH, 2)
    run.returns(
        y, y, tolerance=CLOSE, select=driver_results.value, label="the output", known_mistakes=known
    )
    grad_x, (grad_a, grad_b) = single_device.backward([a, b], saved, upstream)
    expected = [[grad_a[:, :1], grad_b[:1], grad_x], [grad_a[:, 1:], grad_b[1:], grad_x]]
    run.returns(
        *expected,
        tolerance=CLOSE,
        select=driver_results.gradients,
        label="the list of the gradients ([0]: column's, [1]: row's, [2]: x's)",
        known_mistakes=parts.pair_mistakes(a, b, saved, upstream, 2),
    )
    run.keeps_inputs()
    for name, half, value, gradient in (
        ("f", f, BATCH, 2 * varied),
        ("g", g, 2 * BATCH, varied),
    ):
        half.returns(
            value,
            value,
            tolerance=CLOSE,
            select=driver_results.value,
            label=f"{name}(x)",
            known_mistakes=lying[name] if name == "g" else None,
        )
        half.returns(
            [gradient],
            [gradient],
            tolerance=CLOSE,
            select=driver_results.gradients,
            label=f"the gradient of x in {name}(x)",
            known_mistakes=(
                [{m: [own] for m, own in known.items()} for known in lying["f"]]
                if name == "f"
                else None
            ),
        )
        half.returns(
            varied,
            varied,
            tolerance=CLOSE,
            select=driver_results.upstream,
            label=f"grad_y after the backward pass of {name} (it must stay unchanged)",
            known_mistakes=[{parts.GRADIENT_WRITTEN: 2 * varied}] * 2,
        )
        half.keeps_inputs()


@number("4.4")
@weight(0.25)
def test_megatron_pair_misuse(world):
    """Shards that do not fit the batch, or each other, raise ValueError with the numbers"""
    column, row = np.ones((2, 1)), np.ones((1, 2))
    cases = [(column, row, BATCH[:, :1], ("1", "2")), (column, np.ones((3, 2)), BATCH, ("1", "3"))]
    name = "tensor_parallel.megatron_pair"
    calls = (call(name, *given, may_raise=True) for *given, _ in cases)
    for run, (*_, numbers) in zip(world(2, *calls), cases):
        run.raises_value_error(*numbers)
