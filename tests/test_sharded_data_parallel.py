"""Part 6 · Sharded data parallelism: the public checks.

Run one problem with ``make test PART=sharded_data_parallel K=prefetch``.
"""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check import driver_results
from grader.check.api import (
    Delay,
    Probe,
    Strided,
    Tolerance,
    call,
    listed,
    per_rank,
    rounding,
    tensor,
)
from grader.reference import sharded, zero
from grader.reference.counting import counted
from grader.reference.optimizer_reports import require_defaults

MODULE = "sharded_data_parallel"
# Rank 1 begins when rank 0 has returned, or when rank 0 waits for rank 1.
LATE = {1: Delay(until="", on=0, patience=1)}
CLOSE = rounding(np.float64)
STEPS = Tolerance(5e-10, "three AdamW steps in float64")

# A model of 2 layers, 3 wide, and a batch of 4 rows. A layer has 9 entries, so 2 ranks pad it.
WEIGHTS = [
    np.array([[1.0, -0.5, 0.0], [0.5, 1.0, 0.5], [0.0, 0.5, -1.0]]),
    np.array([[0.5, 1.0, 0.0], [-1.0, 2.0, 0.5], [1.0, 0.0, 0.5]]),
]
BATCH = np.arange(12, dtype=np.float64).reshape(4, 3) / 10
HALVES = np.split(BATCH, 2)
SHARDS = sharded.layers_of(WEIGHTS, 2)


@number("6.1")
@weight(0.5)
def test_flat_shards(world):
    """flatten pads five entries for two ranks, flat_shard returns each rank's half, and unflatten
    returns the original tensors
    """
    tensors = [tensor([[1, 2], [3, 4]]), tensor([5])]
    flat = tensor([1, 2, 3, 4, 5, 0])
    flattened, shard, back, short = world(
        2,
        call(f"{MODULE}.flatten", [Strided(tensors[0], "transpose"), tensors[1]]),
        call(f"{MODULE}.flat_shard", tensors, driver="stored"),
        call(f"{MODULE}.unflatten", flat, [(2, 2), (1,)]),
        call(f"{MODULE}.unflatten", flat[:4], [(2, 2), (1,)], may_raise=True),
    )
    flattened.returns(flat, flat, known_mistakes=[sharded.flat_mistakes(tensors, 2)] * 2)
    shard.returns(
        *np.split(flat, 2),
        select=driver_results.value,
        label="the shard",
        known_mistakes=sharded.shard_mistakes(tensors, 2),
    )
    for rank, stored in enumerate(shard.read(driver_results.stored, "the memory of the shard")):
        text = f"rank {rank}'s shard keeps {stored.bytes} bytes alive, but 12 are enough."
        text += " A view keeps the whole flat tensor alive. Return a copy."
        shard.require(stored.bytes <= 12, text)
    back.returns(tensors, tensors)
    short.raises_value_error(
        "4", "6", given="a flat tensor of 4 entries, with shapes (2, 2) and (1,) on 2 ranks"
    )


# For each rank, the gradients of three steps.
GRADIENTS = [
    [
        [np.full((2, 2), 1.0 + rank) * step, np.array([0.5 * step, 3.0 - rank, -1.0])]
        for step in (1, -2, 3)
    ]
    for rank in range(2)
]
START = [np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([0.5, -0.5, 0.25])]
# For each rank, the learning rates of three steps. Later steps have other rates, as in a schedule
# of learning rates. Here the rates of later steps also differ from rank to rank. This is possible
# because each rank updates only its own shard.
RATES = [[0.1, 0.05, 0.2], [0.1, 0.15, 0.02]]


@number("6.2")
@weight(0.75)
def test_zero(world):
    """After three steps of ZeroAdamW on two ranks, the weights are those of a single device, and
    each rank holds half of the optimizer's state; only the steps communicate
    """
    rates = per_rank(*([Probe(f"rate of step {k}", own[k]) for k in (1, 2)] for own in RATES))
    given = START, per_rank(*GRADIENTS), rates
    (run,) = world(2, call(f"{MODULE}.ZeroAdamW", *given, lr=0.1, driver="zero_steps", delays=LATE))
    for optimizer in run.read(driver_results.optimizer, "self.optimizer"):
        require_defaults(run, optimizer)
    after, moments = zero.trained(START, zero.averages(GRADIENTS), RATES)
    run.returns(
        after,
        after,
        tolerance=STEPS,
        select=driver_results.weights,
        label="the list of weights, [step][tensor],",
        known_mistakes=lambda: _whole_first(run, zero.zero_mistakes(START, GRADIENTS, RATES)),
    )
    run.returns(
        *(of_rank[0] for of_rank in moments),
        tolerance=STEPS,
        select=lambda r: driver_results.optimizer(r)["state"]["0"]["exp_avg"],
        label="the optimizer's exp_avg",
        known_mistakes=lambda: zero.state_mistakes(START, GRADIENTS, RATES, 0),
        otherwise="the gradients are wrong, or the state does not belong to this rank's flat shard",
    )
    for rank in range(2):
        # the driver leaves the mark between ZeroAdamW(…) and the first step
        sent = listed(run.operations(rank)[: run.issued_before(rank, "constructed")])
        text = f"on rank {rank}, ZeroAdamW(…) communicated: {sent}. Only step communicates."
        run.require(not sent, text)


def _whole_first(run, mistakes):
    """Return each rank's known mistakes, first those that the optimizer's state shows."""
    return [
        zero.optimizer_mistakes(
            driver_results.optimizer(value), START, 2, driver_results.weights(value)
        )
        | known
        for value, known in zip(run.values(), mistakes)
    ]


@number("6.2")
@weight(0.25)
def test_zero_misuse(world):
    """ZeroAdamW raises ValueError with the numbers if gradients have wrong shapes, or if a gradient
    is missing
    """
    shapes = [((2, 2), (4,)), ((2, 2),)]
    requests = [
        call(
            f"{MODULE}.ZeroAdamW",
            START,
            [[np.ones(shape) for shape in of_case]],
            [],
            driver="zero_steps",
            may_raise=True,
        )
        for of_case in shapes
    ]
    other, missing = world(2, *requests)
    # Here a rank fails only if its step communicates. test_zero judges what ZeroAdamW(…) sends.
    begin = {"since": "constructed"}
    other.raises_value_error("3", "4", given="gradients of shapes (2, 2), (4,)", **begin)
    missing.raises_value_error("1", "2", given="1 gradient for 2 weights", **begin)


@number("6.3")
@weight(0.75)
def test_fully_sharded_step(world):
    """On two ranks, fully_sharded_step returns this rank's own loss and its shards of the averaged
    gradients; a shard of another size raises ValueError
    """
    wrong = per_rank(*([shards[0][:4], shards[1]] for shards in SHARDS))
    name = f"{MODULE}.fully_sharded_step"
    run, refused = world(
        2,
        call(name, per_rank(*SHARDS), per_rank(*HALVES), delays=LATE),
        call(name, wrong, per_rank(*HALVES), may_raise=True),
    )
    losses, gradients = sharded.local_steps(WEIGHTS, HALVES)
    _are_those_of(run, losses, gradients, sharded.step_mistakes(WEIGHTS, HALVES))
    run.keeps_inputs()
    refused.raises_value_error("4", "5", given="a shard of 4 entries in place of 5")


def _are_those_of(run, losses, gradients, of_step):
    """Fail unless a step returned these losses, and the shards of the averaged gradients."""
    known = [a | b for a, b in zip(sharded.sharded_mistakes(gradients), of_step)]
    run.returns(
        *sharded.gradient_shards(gradients),
        tolerance=CLOSE,
        select=lambda r: r[1],
        label="the list of this rank's shards of the gradients",
        known_mistakes=known,
    )
    average = np.array(sum(losses) / len(losses))
    run.returns(
        *map(np.array, losses),
        tolerance=CLOSE,
        select=lambda r: r[0],
        label="the local loss",
        known_mistakes=[{sharded.AVERAGED_LOSS: average}] * len(losses),
    )


@number("6.3")
@weight(0.25)
def test_whole_layers_are_freed(world):
    """On four ranks, fully_sharded_step never holds more memory than two whole layers need: one for
    a layer, one for its gradient
    """
    n, width = 4, 32
    weights = [np.eye(width) + 0.01 * (1 + layer) for layer in range(n)]
    rows = [np.linspace(0.5, 1.0, width)[None] * (1 + rank) for rank in range(n)]
    shards = per_rank(*sharded.layers_of(weights, n))
    (run,) = world(
        n, call(f"{MODULE}.fully_sharded_step", shards, per_rank(*rows), driver="metered")
    )
    losses, _ = sharded.local_steps(weights, rows)
    run.returns(
        *map(np.array, losses),
        tolerance=CLOSE,
        select=lambda r: driver_results.value(r)[0],
        label="the local loss",
    )
    layer, product = weights[0].nbytes, 2 * weights[0].size  # FLOPs of a product with one row
    # Two layers, the shards of all gradients (at the end), and half a layer for small tensors.
    most = 2 * layer + sum(weight.nbytes for weight in weights) // n + layer // 2
    for rank in range(n):
        # Each layer needs at least one product in the forward pass. In the backward pass, each
        # layer except the first needs at least one product, for the gradient of its input.
        products = run.require_products(rank, (2 * n - 1) * product)
        peak = max(entry.alive for entry in products)
        run.require(
            peak <= most,
            f"During a matrix product, rank {rank} held as many bytes as {peak / layer:.1f} whole"
            f" layers. {most / layer:.1f} are enough: two for a layer and its gradient, one for the"
            " shards of all gradients, and half a layer for small tensors. Which variable still"
            " holds a layer, a gradient, or a flat copy of a layer or gradient?",
        )


@number("6.4")
@weight(0.5)
def test_prefetched_step(world):
    """In both passes, before prefetched_step computes a layer, it starts to gather the next layer,
    and no later layer (three layers)
    """
    weights = [*WEIGHTS, np.array([[1.0, 0.0, 0.5], [0.5, -1.0, 1.0], [0.0, 1.0, 0.5]])]
    factors = [0.5, 2.0, 1.25], [1.5, 3.0, 0.75]
    names = "forward of layer {}", "backward of layer {}"
    probes = [
        [Probe(name.format(l), factor) for l, factor in enumerate(of_way)]
        for name, of_way in zip(names, factors)
    ]
    given = per_rank(*sharded.layers_of(weights, 2)), per_rank(*HALVES)
    name = f"{MODULE}.prefetched_step"
    (run,) = world(2, call(name, *given, *probes, driver="followed_layers", slow_gathers=True))
    of_step = sharded.step_mistakes(weights, HALVES, *factors)
    _are_those_of(run, *sharded.local_steps(weights, HALVES, *factors), of_step)
    because = "Gather layers by all-gathers, and average gradients by reduce-scatters."
    run.uses_only("all_gather", "reduce_scatter", because=because)
    for rank in range(2):
        done = [o for o in run.operations(rank) if o.kind == "all_gather"]
        gathers = [o.at for o in done]
        for index, gather in enumerate(done):
            text = (
                f"rank {rank}'s all-gather number {index} (counted from 0) sends {gather.bytes}"
                " bytes, and a shard of a layer has 40. Gather one layer with each all-gather."
            )
            run.require(gather.bytes == 40, text)
        # In the backward pass, layer 2 may be gathered again or not. Layers 1 and 0 must be
        # gathered again.
        text = f"rank {rank} started {len(gathers)} all-gathers for 3 layers; 5 or 6 are needed."
        if len(gathers) < 5:
            text += (
                " Does the rank keep layers? In the backward pass, gather each layer again, except"
                " the last one, which may be kept."
            )
        if len(gathers) > 6:
            text += " Is an index wrong at the end of a pass? shards[-1] is the last layer."
        run.require(len(gathers) in (5, 6), text)
        for way, layer, due, next_layer in (
            *((names[0], 0, 2, 1), (names[0], 1, 3, 2)),
            *((names[1], 2, len(gathers) - 1, 1), (names[1], 1, len(gathers), 0)),
        ):
            began = run.passed(rank, f"{way.format(layer)} began")
            started = sum(at < began for at in gathers)
            text = (
                f"When the {way.format(layer)} began (layers are counted from 0), rank {rank} had"
                f" started {counted(started, 'all-gather')}; {due} were expected. "
            )
            text += (
                f"Start the gather of layer {next_layer} before you compute layer {layer}. (If your"
                " code does this: does it gather shards[l − 1] also for l = 0? shards[-1] is the"
                " last layer.)"
                if started < due
                else "Gather one layer ahead, not more."
            )
            run.require(started == due, text)
        # In each pass, nothing can be computed while the first gather runs.
        firsts = (0, 3) if len(gathers) == 6 else (0,)
        early = [number for number in run.awaited_early(rank) if number not in firsts]
        run.require(
            not early,
            f"rank {rank} waited for its all-gathers {early} (counted from 0) before it had"
            " computed the previous layer, so no computation overlaps with these gathers. Wait for"
            " a gather only when its layer is computed next.",
        )
