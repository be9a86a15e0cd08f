"""Part 3 · Data parallelism: the public checks.

Run one problem with ``make test PART=data_parallel K=buckets``.
"""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check.api import (
    Delay,
    Probe,
    RequiresGrad,
    Strided,
    Tolerance,
    call,
    per_rank,
    rounding,
    tensor,
)
from grader.reference import single_device
from grader.reference.collective_mistakes import MEMORY
from grader.reference.data_parallel import (
    ADDED_AS_IT_LIES,
    ALONE_ON_RANK,
    AS_IT_LIES,
    BEFORE_ACCUMULATION,
    DIVIDED_COPY,
    LOSS_DIVIDED,
    MIXED_BUCKETS,
    NOT_RESET,
    ONLY_A_COPY,
    RESET,
    STRIDED_LEFT_OUT,
    TOO_EARLY,
    left_out,
    loss_mistakes,
    output_saved_mistakes,
    own_or_not_copied,
    require_average,
    step_mistakes,
)
from grader.reference.optimizer_reports import optimizer_hint, require_default_adamw
from grader.reference.training_mistakes import training_mistakes

# There are 8 rows of 3 columns, 2 layers and 2 ranks. If a solution divides by the number of rows
# or columns, and not by the number of ranks, it gets another result.
BATCH = np.arange(24, dtype=np.float64).reshape(8, 3) / 20
WEIGHTS = [
    np.array([[1.0, -0.5, 0.0], [0.5, 1.0, 0.5], [0.0, 0.5, -1.0]]),
    np.array([[0.5, 1.0, 0.0], [-1.0, 2.0, 0.5], [1.0, 0.0, 0.5]]),
]
WEIGHT_BYTES = sum(own.nbytes for own in WEIGHTS)
HALVES = np.split(BATCH, 2)
# Rank 1 begins when rank 0 has returned, or when rank 0 waits for rank 1.
LATE = {1: Delay(until="", on=0, patience=1)}
CLOSE = rounding(np.float64)


@number("3.1")
@weight(0.5)
def test_shard_batch(world):
    """shard_batch gives the first three of six rows to rank 0, and the last three to rank 1"""
    run, odd = world(
        2,
        call("data_parallel.shard_batch", tensor([[1], [2], [3], [4], [5], [6]])),
        call("data_parallel.shard_batch", tensor([[1], [2], [3]]), may_raise=True),
    )
    known = [
        {
            "every n-th row was taken. Take consecutive rows": tensor(
                [[i + rank] for i in (1, 3, 5)]
            ),
            "split(n) makes parts of n rows. tensor_split(n) makes n parts": tensor(
                [[2 * rank + i] for i in (1, 2)]
            ),
        }
        for rank in range(2)
    ]
    run.returns([[1.0], [2.0], [3.0]], [[4.0], [5.0], [6.0]], known_mistakes=known)
    odd.raises_value_error("3", "2")


@number("3.2")
@weight(0.5)
def test_broadcast_parameters(world):
    """broadcast_parameters overwrites rank 1's parameters with rank 0's values, for any memory
    layout
    """
    mine, yours = [tensor([1, 2]), tensor([[3.0]])], [tensor([7, 8]), tensor([[9.0]])]
    given = per_rank(*([RequiresGrad(trained), frozen] for trained, frozen in (mine, yours)))
    # This parameter is not contiguous: it is a transpose on rank 0 and a slice on rank 1.
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
    # A slice contains only every second number of its memory. So if six numbers are written to this
    # memory, one after the other, only three of them change the slice.
    written = np.concatenate([by_columns.ravel()[::2], matrices[1].ravel()[3:]]).reshape(2, 3)
    known = [
        {},
        {STRIDED_LEFT_OUT: [matrices[1]], MEMORY: [by_columns], AS_IT_LIES: [written]},
    ]
    label = "the list with one parameter that is not contiguous"
    of_strided.leaves_arguments([matrices[0]], [matrices[0]], label=label, known_mistakes=known)


@number("3.2")
@weight(0.25)
def test_broadcast_parameters_misuse(world):
    """A root that is not a rank raises ValueError with the root's number"""
    name, given = "data_parallel.broadcast_parameters", [tensor([1, 2])]
    for run, root in zip(
        world(2, *(call(name, given, root=root, may_raise=True) for root in (2, -1))), ("2", "-1")
    ):
        run.raises_value_error(root)


@number("3.3")
@weight(1.5)
def test_data_parallel_step(world):
    """data_parallel_step returns each rank's own loss and the average of the ranks' gradients, on
    two ranks and on one rank
    """
    (run,) = world(
        2, call("data_parallel.data_parallel_step", WEIGHTS, per_rank(*HALVES), delays=LATE)
    )
    _, gradients = single_device.loss_and_gradients(WEIGHTS, BATCH)
    local = [single_device.loss_and_gradients(WEIGHTS, half) for half in HALVES]
    means = loss_mistakes(gradients, *HALVES[0].shape)
    means |= output_saved_mistakes(WEIGHTS, HALVES)
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
            ),
            "this is the sum of all ranks' losses. Return this rank's own loss": np.array(
                sum(losses)
            ),
            LOSS_DIVIDED: np.array(own / 2),
        }
        for own in losses
    ]
    # On rank 1 the weights are transposes in memory. Their gradients can be transposes, too.
    turned = per_rank(WEIGHTS, [Strided(weight, "transpose") for weight in WEIGHTS])
    (crossed,) = world(2, call("data_parallel.data_parallel_step", turned, per_rank(*HALVES)))
    of_rank_1 = [own.T for own in local[1][1]]
    met = [(a + b) / 2 for a, b in zip(local[0][1], of_rank_1)]
    crossed.returns(
        gradients,
        gradients,
        tolerance=CLOSE,
        select=lambda r: r[1],
        label="the list of gradients",
        known_mistakes=[
            {ADDED_AS_IT_LIES: met},
            {
                ADDED_AS_IT_LIES: [own.T for own in met],
                ONLY_A_COPY: local[1][1],
                DIVIDED_COPY: [own / 2 for own in local[1][1]],
            },
        ],
    )
    (alone,) = world(1, call("data_parallel.data_parallel_step", WEIGHTS, BATCH))
    alone.returns(
        gradients,
        tolerance=CLOSE,
        select=lambda r: r[1],
        label="the list of gradients",
        known_mistakes=step_mistakes([gradients]),
    )
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
    require_average(run, WEIGHT_BYTES)
    run.keeps_inputs()


@number("3.4")
@weight(1.0)
def test_train(world):
    """train averages gradients in each step, and ends with the weights of a single device after
    three steps on two ranks
    """
    batches = [BATCH, BATCH[::-1] + 0.3, BATCH * 0.5]
    shards = [list(halves) for halves in zip(*(np.split(batch, 2) for batch in batches))]
    (run,) = world(2, call("data_parallel.train", WEIGHTS, per_rank(*shards), lr=0.01, delays=LATE))
    require_default_adamw(run)
    weights, losses, _ = single_device.adamw(WEIGHTS, batches, lr=0.01)
    tolerance = Tolerance(
        5e-10, "three AdamW steps in float64: they enlarge the rounding error of a tiny gradient"
    )
    hint = optimizer_hint(run.values()[0], lr=0.01)
    run.leaves_arguments(
        *[weights] * 2,
        label="the list of weights",
        tolerance=tolerance,
        known_mistakes=lambda: training_mistakes(WEIGHTS, shards, lr=0.01)[0],
        otherwise=hint,
    )
    run.returns(
        *[np.array(losses)] * 2,
        tolerance=tolerance,
        select=lambda r: r[0],
        label="the tensor of losses",
        known_mistakes=lambda: training_mistakes(WEIGHTS, shards, lr=0.01)[1],
        otherwise=hint,
    )
    require_average(run, len(batches) * WEIGHT_BYTES)


def buckets(passes, **options):
    """Return a request for backward passes in which each gradient has its own bucket.

    ``passes[rank]`` has a rank's passes: the input, and the index of each layer's weight.
    """
    given = {"weights": WEIGHTS, "registered": [0, 1], "frozen": [], "squared": []}
    given |= {"bucket_bytes": 72}  # one gradient of 3 × 3 float64
    options = {"driver": "backward_passes"} | given | options
    return call("data_parallel.GradientBuckets", passes=per_rank(*passes), **options)


def local_gradients(passes):
    """Return the gradients of each rank in each pass: [rank][pass][weight]."""
    return [[single_device.loss_and_gradients(WEIGHTS, *one)[1] for one in own] for own in passes]


@number("3.5")
@weight(1.25)
def test_gradient_buckets(world):
    """In every pass, both ranks get the gradients of the whole batch, even if gradients become
    ready in different orders on the ranks
    """
    straight = [[(half, [0, 1])] for half in HALVES]
    # On rank 1 the gradient of weight 0 becomes ready first.
    crossed = [[(half, order)] for half, order in zip(HALVES, ([0, 1], [1, 0]))]
    twice = [[(half, [0, 1]), (half + 0.5, [0, 1])] for half in HALVES]
    # Rank 1 begins when rank 0 has read its gradients, or when rank 0 waits for rank 1.
    late = {1: Delay(until="pass ended", on=0, at="backward pass 0 began", patience=1)}
    run, of_crossed, of_twice = world(
        2, buckets(straight, delays=late), buckets(crossed), buckets(twice)
    )
    label = "the list of gradients, [pass][weight],"
    _, gradients = single_device.loss_and_gradients(WEIGHTS, BATCH)
    local = local_gradients(straight)
    known = [
        {sentence: [left] for sentence, left in own.items()}
        for own in step_mistakes([own for (own,) in local])
    ]
    for rank, own in enumerate(known):
        own[own_or_not_copied(run, rank)] = own.pop(ALONE_ON_RANK)
        own[BEFORE_ACCUMULATION] = [[np.zeros_like(g) for g in gradients]]
    run.returns([gradients], [gradients], tolerance=CLOSE, label=label, known_mistakes=known)
    local = local_gradients(crossed)
    average = [sum(terms) / 2 for terms in zip(*(own for (own,) in local))]
    # If each rank starts a bucket as soon as it is full, rank 0 begins with weight 1's bucket, and
    # rank 1 with weight 0's bucket. Then an all-reduce adds up gradients of different weights.
    (of_0,), (of_1,) = local
    first, second = (of_0[1] + of_1[0]) / 2, (of_0[0] + of_1[1]) / 2
    known = [{MIXED_BUCKETS: [[second, first]]}, {MIXED_BUCKETS: [[first, second]]}]
    of_crossed.returns([average], [average], tolerance=CLOSE, label=label, known_mistakes=known)
    averages = [[sum(terms) / 2 for terms in zip(*own)] for own in zip(*local_gradients(twice))]
    # A single pass is right: see above. So wrong values of two passes, whatever they are, show that
    # something was not reset.
    of_twice.returns(
        averages,
        averages,
        tolerance=CLOSE,
        label=label,
        known_mistakes=lambda: [{NOT_RESET: value} for value in of_twice.values()],
        otherwise=NOT_RESET,
        if_none=NOT_RESET,
    )


@number("3.5")
@weight(0.5)
def test_gradient_buckets_of_other_parameters(world):
    """Buckets work if a parameter is frozen, is registered twice, or is not used on one rank; two
    parameters that fit into one bucket share it
    """
    passes = [[(half, [0, 1])] for half in HALVES]
    (of_0,), (of_1,) = local_gradients(passes)
    average = [(a + b) / 2 for a, b in zip(of_0, of_1)]
    # Rank 1 uses only weight 1. So only rank 0 has a gradient of weight 0. In the average, rank 1
    # contributes zeros.
    unused = [passes[0], [(HALVES[1], [1])]]
    _, (_, of_1_alone) = single_device.loss_and_gradients(WEIGHTS, HALVES[1], [1])
    cases = [
        ("weight 0 is frozen", buckets(passes, frozen=[0]), [None, average[1]], 1),
        ("weight 0 is registered twice", buckets(passes, registered=[0, 1, 0]), average, 2),
        (
            "rank 1 does not use weight 0",
            buckets(unused),
            [of_0[0] / 2, (of_0[1] + of_1_alone) / 2],
            2,
        ),
        ("both weights fit into one bucket", buckets(passes, bucket_bytes=2 * 72), average, 1),
    ]
    for what, request, expected, enough in cases:
        # Each call has its own world. Otherwise a collective of the next call could take the place
        # of a missing collective.
        (run,) = world(2, request)
        label = f"the list of gradients, [pass][weight], in the case “{what}”,"
        zeros = [g if g is None else np.zeros_like(g) for g in expected]
        known = {BEFORE_ACCUMULATION: [zeros]}
        if request.kwargs["bucket_bytes"] > 72:  # weight 1's gradient is ready first
            known[TOO_EARLY] = [[zeros[0], expected[1]]]
        run.returns(
            [expected], [expected], tolerance=CLOSE, label=label, known_mistakes=[known] * 2
        )
        for rank in range(2):
            begin = run.passed(rank, "backward pass 0 began")  # the constructor may communicate
            started = sum(o.at >= begin and o.kind != "barrier" for o in run.operations(rank))
            run.require(
                started <= enough,
                f"in the case “{what}”, rank {rank} started {started} operations. Expected: one"
                f" all-reduce for each bucket, at most {enough} in all, and nothing else. Put"
                " each parameter that needs an average into exactly one bucket.",
            )


def late_in_turn(first, second):
    """Return delays: rank ``first`` is late in pass 0, and rank ``second`` in pass 1.

    The late rank begins its backward pass when the other rank has ended its own backward pass.
    """
    return {
        late: Delay(until=f"backward pass {p} ended", on=1 - late, at=f"backward pass {p} began")
        for p, late in enumerate((first, second))
    }


def overlaps(run, rank, p):
    """Fail unless a rank starts an all-reduce during its backward pass ``p``."""
    text = f"rank {rank} started no all-reduce during its backward pass {p} (counted from 0)."
    text += " One of the 2 buckets is full before the pass ends. Does each hook use the bucket of"
    text += " its own parameter? (A lambda made in a loop sees only the loop's last values.)"
    if p and started_during(run, rank, 0):
        text += f" In pass 0, the rank started an all-reduce in time. {RESET}"
    run.require(started_during(run, rank, p) > 0, text)


def started_during(run, rank, p):
    """Return the number of operations that a rank started during its backward pass ``p``."""
    began, ended = (run.passed(rank, f"backward pass {p} {what}") for what in ("began", "ended"))
    return sum(began < o.at < ended for o in run.operations(rank))


@number("3.5")
@weight(0.5)
def test_gradient_buckets_overlap(world):
    """In every backward pass, both ranks start all-reduces before the pass has ended, and do not
    wait for each other
    """
    twice = [[(half, [0, 1]), (half + 0.5, [0, 1])] for half in HALVES]
    passes = [own[:1] for own in twice]
    # A rank learns the factors of the first layer's gradient only when its backward pass reaches
    # this layer. The gradient of the last layer is ready before that.
    seeds = per_rank(*[[[Probe("first layer of pass 0", 1)]]] * 2)
    *runs, of_asking = world(
        2,
        # Rank 0 ends pass 0 before rank 1 begins it. Rank 1 ends pass 1 before rank 0 begins it.
        buckets(twice, delays=late_in_turn(1, 0)),
        # Rank 1 ends pass 0 before rank 0 begins it. Rank 0 ends pass 1 before rank 1 begins it.
        buckets(twice, delays=late_in_turn(0, 1)),
        buckets(passes, seeds=seeds),
    )
    for run in runs:
        run.waits_for_nobody(
            "a rank waited for the other rank in a backward pass, so nothing overlaps."
        )
        run.values()
        for rank in range(2):
            overlaps(run, rank, p=0)
            overlaps(run, rank, p=1)
    of_asking.values()
    for rank in range(2):
        asked = of_asking.passed(rank, "first layer of pass 0 began")
        of_asking.require(
            any(o.at < asked for o in of_asking.operations(rank)),
            f"rank {rank} started no all-reduce before its backward pass came to the first layer."
            " The gradient of the last layer is ready before that. bucket_bytes is 72, and each"
            " of the two gradients has 72 bytes (9 · 8), so each has a bucket of its own. Do you"
            " fill and start the buckets from the last parameter to the first?",
        )


@number("3.5")
@weight(0.125)
def test_gradient_buckets_misuse(world):
    """bucket_bytes ≤ 0 raises ValueError with the value"""
    passes = [[(half, [0, 1])] for half in HALVES]
    requests = (buckets(passes, bucket_bytes=size, may_raise=True) for size in (0, -8))
    for run, size in zip(world(2, *requests), ("0", "-8")):
        run.raises_value_error(size, given=f"bucket_bytes={size}")
