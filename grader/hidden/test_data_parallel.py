"""Part 3 · Data parallelism: the hidden checks, against the single device in float64."""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.face import Hold, Leaf, Strided, Tolerance, call, each, rounding
from grader.judging import results, truth
from grader.judging.training_mistakes import step_mistakes, training_mistakes

SIZES = (1, 2, 3, 4)
ALONE = "this rank's own gradients, averaged with nobody"
MEAN = "the mean over the ranks: asked for are the root's own values"
PASSED_BY = "nothing was overwritten: here the parameters come from a generator, as model.parameters() does, which passes by once"


def problem(rng, n, layers=3, width=6, rows=4, dtype=np.float64):
    """Weights, the batch of all ranks, and each rank's shard of it."""
    weights = [(rng.standard_normal((width, width)) * (2 / width) ** 0.5).astype(dtype) for _ in range(layers)]
    batch = rng.standard_normal((rows * n, width)).astype(dtype)
    return weights, batch, np.split(batch, n)


def cast(values, dtype):
    return [None if v is None else np.asarray(v, dtype) for v in values]


@number("3.1")
@weight(1.0)
def test_shard_batch(world, rng):
    """Each rank of 1 to 4 has its own rows, of batches of any shape, and together they have them all"""
    for n in SIZES:
        batches = [rng.standard_normal((3 * n, 5)), rng.integers(0, 99, (n, 2, 3)), rng.standard_normal(2 * n)]
        requests = [
            call("data_parallel.shard_batch", wrap(b)) for b, wrap in zip(batches, (Strided, np.array, np.array))
        ]
        for run, batch in zip(world(n, *requests), batches):
            interleaved = [{"every n-th row: contiguous rows were asked for": batch[r::n]} for r in range(n)]
            run.returns(*np.split(batch, n), lookalikes=interleaved if n > 1 else None)
            run.keeps_inputs()
            for rank in range(n):
                done = run.operations(rank)
                run.demand(
                    not done,
                    f"rank {rank} communicated, though every rank has the batch: {', '.join(map(str, done[:1]))}",
                )


@number("3.1")
@weight(0.5)
def test_shard_batch_misuse(world, rng):
    """A batch that does not divide is a ValueError with both numbers"""
    for n, rows in ((3, 10), (4, 2)):
        (run,) = world(n, call("data_parallel.shard_batch", rng.standard_normal((rows, 3)), may_raise=True))
        run.raises_value_error(str(rows), str(n))


@number("3.2")
@weight(1.0)
def test_broadcast_parameters(world, rng):
    """The root's parameters are everywhere, for every root of 1 to 4 ranks, any shape, dtype and layout"""
    for n in SIZES:
        own = [
            [rng.standard_normal((2, 3)), rng.standard_normal(5).astype(np.float32), rng.standard_normal(())]
            for _ in range(n)
        ]
        own = [[np.asarray(parameter) for parameter in parameters] for parameters in own]
        layouts = [np.array if rank % 2 else Strided for rank in range(n)]  # the ranks' need not be alike
        given = each(*([lay(matrix), Leaf(vector), scalar] for lay, (matrix, vector, scalar) in zip(layouts, own)))
        ways = ["generator", "plain"] * n  # model.parameters() is a generator, which passes by once
        runs = world(
            n,
            *(
                call("data_parallel.broadcast_parameters", given, driver=ways[root], **({"root": root} if root else {}))
                for root in range(n)
            ),
        )
        for root, run in enumerate(runs):
            mean = [np.asarray(sum(values) / n, values[0].dtype) for values in zip(*own)]
            known = [
                ({MEAN: mean} if n > 1 else {}) | ({PASSED_BY: mine} if ways[root] == "generator" else {})
                for mine in own
            ]
            run.leaves_arguments(
                *[own[root]] * n, named="the list of the caller's parameters after the call", lookalikes=known
            )
            run.returns(*[None] * n)


@number("3.2")
@weight(0.5)
def test_broadcast_parameters_misuse(world, rng):
    """A root that is no rank is a ValueError that names it"""
    parameters = [rng.standard_normal(3)]
    for run in world(
        2, *(call("data_parallel.broadcast_parameters", parameters, root=r, may_raise=True) for r in (2, -1))
    ):
        run.raises_value_error(str(run.report.calls[run.index].arguments[0][1]["root"]))


@number("3.3")
@weight(3.0)
def test_step_gradients(world, rng):
    """The gradients are those of the whole batch on every rank of 1 to 4, in float32 and float64, twice"""
    for n in SIZES:
        problems = [problem(rng, n, dtype=dtype) for dtype in (np.float64, np.float32, np.float64)]
        requests = [
            call("data_parallel.data_parallel_step", [Strided(w) for w in weights], each(*shards))
            for weights, _, shards in problems
        ]
        for run, (weights, batch, shards) in zip(world(n, *requests), problems):
            dtype = batch.dtype
            gradients = cast(truth.loss_and_gradients(weights, batch)[1], dtype)
            local = [cast(truth.loss_and_gradients(weights, shard)[1], dtype) for shard in shards]
            run.returns(
                *[gradients] * n,
                within=rounding(dtype),
                part=lambda r: r[1],
                named="the list of gradients",
                lookalikes=step_mistakes(local),
            )
            run.keeps_inputs()
    _does_not_accumulate(world, rng, n=2)


def _does_not_accumulate(world, rng, n):
    """Two steps with the same weight tensors, as in training."""
    weights, batch, shards = problem(rng, n)
    (run,) = world(n, call("data_parallel.data_parallel_step", weights, each(*shards), driver="twice"))
    gradients = truth.loss_and_gradients(weights, batch)[1]
    run.returns(
        *[gradients] * n,
        within=rounding(np.float64),
        part=lambda r: r[1][1],
        named="the list of gradients of a second step with the same weights",
        lookalikes=[
            {
                "the second step's gradients were added to the first's": [2 * g for g in gradients],
                "the second step's gradients were added to the first's, which the ranks had added up": [
                    (n + 1) * g for g in gradients
                ],
            }
        ]
        * n,
    )


@number("3.3")
@weight(1.0)
def test_step_loss_is_local(world, rng):
    """Each rank returns the loss of its own shard, and their mean is the loss of the whole batch"""
    for n in SIZES:
        weights, batch, shards = problem(rng, n)
        (run,) = world(n, call("data_parallel.data_parallel_step", weights, each(*shards)))
        local = [np.array(truth.loss_and_gradients(weights, shard)[0]) for shard in shards]
        whole = np.array(truth.loss_and_gradients(weights, batch)[0])
        averaged = {"the loss of the whole batch: the local loss was to stay unsynchronised": whole}
        run.returns(
            *local,
            within=rounding(np.float64),
            part=lambda r: r[0],
            named="the local loss",
            lookalikes=[averaged] * n if n > 1 else None,
        )


@number("3.3")
@weight(0.5)
def test_step_traffic(world, rng):
    """A step communicates every gradient once, and nothing else"""
    for n in (2, 3):
        weights, _, shards = problem(rng, n, rows=64)  # a shard is larger than all gradients together
        (run,) = world(n, call("data_parallel.data_parallel_step", weights, each(*shards)))
        run.values()
        size = sum(w.nbytes for w in weights)
        for rank in range(n):
            done = [o for o in run.operations(rank) if o.kind != "recv"]
            sent = sum(o.bytes for o in done)
            run.demand(sent > 0, f"rank {rank} communicated nothing.")
            in_two_parts = {o.kind for o in done} <= {"reduce_scatter", "all_gather", "send"}  # as in a ring
            allowed = 2 * size + 64 if in_two_parts else size + 64
            sentence = f"rank {rank} put {sent} bytes into communication; the gradients together have {size}."
            run.demand(sent <= allowed, sentence + " Weights, activations and inputs stay where they are.")


def training(rng, n, dtype=np.float64, steps=4):
    weights, _, _ = problem(rng, n, layers=2, dtype=dtype)
    batches = [rng.standard_normal((3 * n, 6)).astype(dtype) for _ in range(steps)]
    shards = [[np.split(batch, n)[rank] for batch in batches] for rank in range(n)]
    return weights, batches, shards


@number("3.4")
@weight(1.0)
def test_train_weights(world, rng):
    """After four steps the weights are those of a single device, on every rank of 1 to 4"""
    for n in SIZES:
        weights, batches, shards = training(rng, n)
        (run,) = world(n, call("data_parallel.train", weights, each(*shards), lr=0.02))
        expected, _, _ = truth.adamw(weights, batches, lr=0.02)
        # An entry whose gradient is no larger than AdamW's ε turns an error of 1e−17 in it into 1e−9 of a step of lr.
        run.leaves_arguments(
            *[expected] * n,
            named="the list of weights after training",
            within=Tolerance(5e-10, "four AdamW steps in float64"),
            lookalikes=training_mistakes(weights, shards, lr=0.02)[0],
        )


@number("3.4")
@weight(1.0)
def test_train_state(world, rng):
    """The optimizer's moments and step count are those of a single device"""
    for n in (1, 2, 4):
        weights, batches, shards = training(rng, n)
        (run,) = world(n, call("data_parallel.train", weights, each(*shards), lr=0.02))
        _, _, states = truth.adamw(weights, batches, lr=0.02)
        for name in ("exp_avg", "exp_avg_sq"):
            run.returns(
                *[[state[name] for state in states]] * n,
                within=rounding(np.float64),
                part=lambda r: [r[1]["state"][str(i)][name] for i in range(len(weights))],
                named=f"the optimizer's {name}",
            )
        run.returns(*["AdamW"] * n, part=lambda r: r[1]["optimizer"], named="the optimizer's type")
        for rank, steps in enumerate(run.read(results.steps, "the optimizer's count of steps")):
            text = f"rank {rank}'s optimizer counted {steps} steps instead of 4."
            run.demand(steps == [4.0] * len(weights), text)


@number("3.4")
@weight(1.0)
def test_train_losses(world, rng):
    """The losses are those of the whole batch before each update, the same on every rank"""
    for n in SIZES:
        weights, batches, shards = training(rng, n, np.float32)
        (run,) = world(n, call("data_parallel.train", weights, each(*shards)))  # at the rate of the signature
        _, losses, _ = truth.adamw(weights, batches, lr=1e-3)
        run.returns(
            *[np.array(losses, np.float32)] * n,
            within=rounding(np.float32),
            part=lambda r: r[0],
            named="the tensor of losses",
            lookalikes=training_mistakes(weights, shards, lr=1e-3)[1],
        )


# ——— 3.5: the buckets. Weights are 4 × 4 float64, so a gradient has 128 bytes.


def buckets(rng, n, layers, passes=1, then=None, more=(), dtype=np.float64, **options):
    """A call of the backward program, and what every pass should leave.

    ``layers[rank]`` are the weights that it uses, in order, in every pass, or ``then[rank]`` in the second one; ``more`` are
    the shapes of further parameters, whose squares are added to the loss.
    """
    count = 1 + max(i for own in layers for i in own)
    weights = [rng.standard_normal((4, 4)).astype(dtype) for _ in range(count)]
    weights += [rng.standard_normal(shape).astype(dtype) for shape in more]
    count = len(weights)
    shards = [[rng.standard_normal((3, 4)).astype(dtype) for _ in range(passes)] for _ in range(n)]
    uses = [[own if p == 0 or then is None else then[rank] for p in range(passes)] for rank, own in enumerate(layers)]
    squared = list(range(count - len(more), count))
    options = {"registered": list(range(count)), "frozen": [], "squared": squared, "bucket_bytes": 256} | options
    holds = options.pop("holds", None)
    request = call(
        "data_parallel.GradientBuckets",
        driver="backward_passes",
        weights=weights,
        passes=each(*(list(zip(shards[rank], uses[rank])) for rank in range(n))),
        holds=holds,
        **options,
    )
    expected, alone = [], [[] for _ in range(n)]
    for p in range(passes):
        own = [truth.loss_and_gradients(weights, shards[rank][p], uses[rank][p])[1] for rank in range(n)]
        own = [cast(gradients[: count - len(more)] + [2 * weights[i] for i in squared], dtype) for gradients in own]
        average = []
        for i in range(count):
            used = [g[i] for g in own if g[i] is not None]
            average.append(sum(used) / n if used and i not in options["frozen"] else None)
        expected.append(average)
        for rank in range(n):
            alone[rank].append([None if i in options["frozen"] else g for i, g in enumerate(own[rank])])
    lookalikes = [{ALONE: own} if n > 1 else {} for own in alone]
    for known in lookalikes if passes > 1 else ():
        known["the average of an earlier backward pass: what is kept from one to the next?"] = [expected[0]] * passes
    return request, expected, lookalikes


def unused_is_zero_or_none(expected):
    """A part that lets an all-zero gradient pass for the None of a parameter that nobody used."""

    def normalise(passes):
        return [
            [
                None if e is None and isinstance(g, np.ndarray) and not g.any() else g
                for g, e in zip(got, of_pass, strict=True)
            ]
            for got, of_pass in zip(passes, expected, strict=True)
        ]

    return normalise


def started_early(run, rank):
    """How many of a rank's communications began before its first backward pass had ended."""
    ended = run.passed(rank, "backward ended")
    return sum(o.at < ended for o in run.operations(rank))


@number("3.5")
@weight(1.0)
def test_buckets_values(world, rng):
    """Gradients are those of the whole batch on every rank of 1 to 4, for large and small buckets, pass after pass"""
    for n in SIZES:
        made = [buckets(rng, n, [[0, 1, 2, 3]] * n, passes=2, bucket_bytes=b) for b in (1, 128, 300, 1 << 20)]
        for run, (_, expected, alone) in zip(world(n, *(request for request, _, _ in made)), made):
            run.returns(
                *[expected] * n,
                within=rounding(np.float64),
                lookalikes=alone,
                named="the list of gradients, [pass][parameter],",
            )


@number("3.5")
@weight(0.5)
def test_buckets_tied(world, rng):
    """A parameter that two layers share, and that is registered twice, is averaged once"""
    for n in (1, 2, 3):
        request, expected, alone = buckets(rng, n, [[0, 1, 0, 2]] * n, registered=[0, 1, 0, 2], bucket_bytes=128)
        (run,) = world(n, request)
        run.returns(*[expected] * n, within=rounding(np.float64), lookalikes=alone)
        for rank in range(n):
            sent = sum(o.bytes for o in run.operations(rank))
            sentence = (
                f"rank {rank} communicated {sent} bytes for three gradients of 128: is the tied one counted twice?"
            )
            run.demand(sent <= 3 * 128, sentence)


@number("3.5")
@weight(0.5)
def test_buckets_frozen(world, rng):
    """A frozen parameter is left alone and does not hold up its bucket"""
    for n in (2, 3):
        made = [buckets(rng, n, [[0, 1, 2, 3, 4]] * n, frozen=frozen) for frozen in ([3], [])]
        run, free = world(n, *(request for request, _, _ in made))
        _, expected, alone = made[0]
        run.returns(*[expected] * n, within=rounding(np.float64), lookalikes=alone)
        for rank in range(n):
            # Of [4, 2], [1, 0] the first is full as soon as the third layer has its gradient.
            sentence = (
                f"rank {rank} started no all-reduce before its backward pass had ended, where it does if none of the"
                " parameters is frozen: does the frozen one hold up its bucket?"
            )
            run.demand(started_early(run, rank) > 0 or not started_early(free, rank), sentence)


@number("3.5")
@weight(0.5)
def test_buckets_without_gradient(world, rng):
    """A parameter that one rank, or every rank, did not use does not make the ranks disagree"""
    for n, layers, bytes_ in (
        (2, [[0, 1, 2], [0, 2]], 128),
        (3, [[0, 1, 3], [0, 3], [0, 2, 3]], 256),
        (2, [[0, 2], [0, 2]], 128),
        (1, [[0, 2]], 128),
    ):
        # In the second pass every parameter is used: what was incomplete before must not be remembered.
        all_used = [list(range(1 + max(i for own in layers for i in own)))] * n
        request, expected, _ = buckets(rng, n, layers, passes=2, then=all_used, bucket_bytes=bytes_)
        (run,) = world(n, request)
        run.returns(
            *[expected] * n,
            within=rounding(np.float64),
            part=unused_is_zero_or_none(expected),
            named="the list of gradients after each pass",
        )


@number("3.5")
@weight(0.25)
def test_buckets_misuse(world, rng):
    """Buckets of no bytes are a ValueError that names them"""
    for run, size in zip(world(2, *(_misused(rng, size) for size in (0, -8))), ("0", "-8")):
        run.raises_value_error(size)


def _misused(rng, size):
    request, _, _ = buckets(rng, 2, [[0]] * 2, bucket_bytes=size)
    request.options["may_raise"] = True
    return request


@number("3.5")
@weight(0.75)
def test_buckets_collectives(world, rng):
    """Eight gradients in buckets of two travel in four collectives, none larger than a bucket; one that is larger goes alone"""
    sizes = ((256, 4), (100, 8), (1 << 20, 1))  # the bytes of a bucket, and how many collectives that takes
    for n in (2, 3):
        made = [buckets(rng, n, [list(range(8))] * n, bucket_bytes=b) for b, _ in sizes]
        runs = world(n, *(request for request, _, _ in made))
        for run, (_, expected, alone), (size, most) in zip(runs, made, sizes):
            run.returns(*[expected] * n, within=rounding(np.float64), lookalikes=alone)
            run.uses_only("all_reduce", because="Buckets are averaged by all-reduces.")
            for rank in range(n):
                sent = [o.bytes for o in run.operations(rank)]
                text = f"with buckets of {size} bytes and eight gradients of 128, rank {rank} started {len(sent)} all-reduces"
                run.demand(len(sent) <= most, f"{text} where {most} are enough.")
                run.demand(max(sent) <= max(size, 128), f"{text}, one of {max(sent)} bytes.")
    _packs_bytes(world, rng)


def _packs_bytes(world, rng):
    """Parameters of many sizes: four of 64 bytes, and others of 4, 800 and 60 bytes between them."""
    options = {"more": [(1,), (200,), (15,)], "registered": [0, 4, 1, 5, 2, 6, 3], "bucket_bytes": 128}
    request, expected, _ = buckets(rng, 2, [[0, 1, 2, 3]] * 2, dtype=np.float32, **options)
    (run,) = world(2, request)
    run.returns(*[expected] * 2, within=rounding(np.float32))
    for rank in range(2):
        # From the last: [64, 60], [64], [800], [64, 4], [64]; what is larger than a bucket has its own.
        sent = [o.bytes for o in run.operations(rank)]
        text = (
            f"with buckets of 128 bytes, rank {rank} sent {sent} bytes for gradients of 64, 4, 64, 800, 64, 60 and 64"
        )
        run.demand(all(size <= 128 or size == 800 for size in sent), f"{text}: some hold more than they may.")
        run.demand(len(sent) <= 5, f"{text}: five are enough.")


@number("3.5")
@weight(1.5)
def test_buckets_overlap(world, rng):
    """The first all-reduce begins before the backward pass has ended, and the pass does not wait for the other ranks"""
    for n in (2, 3):
        # The constructor may communicate: it is afterwards that the others come late.
        holds = {rank: Hold(until="backward ended", on=0, at="backward began") for rank in range(1, n)}
        request, expected, alone = buckets(rng, n, [[0, 1, 2, 3, 4, 5]] * n, holds=holds)
        (run,) = world(n, request)
        run.returns(*[expected] * n, within=rounding(np.float64), lookalikes=alone)
        for rank in range(n):
            early = started_early(run, rank)
            run.demand(
                early > 0,
                f"rank {rank} started no all-reduce before its backward pass had ended: nothing overlaps.",
            )
            sentence = (
                f"rank {rank} started {early} of 3 all-reduces during the backward pass: all but the last can begin."
            )
            run.demand(early >= 2, sentence)
    _starts_with_the_last_layers(world, rng)


def _starts_with_the_last_layers(world, rng):
    """The first parameter never gets a gradient: who waits for it, or begins with it, has started nothing."""
    request, _, _ = buckets(rng, 2, [[1, 2, 3, 4, 5]] * 2)
    (run,) = world(2, request)  # what becomes of the unused one is asked elsewhere
    for rank in range(2):
        early = started_early(run, rank)
        sentence = (
            f"rank {rank} started {early} of 3 all-reduces during a backward pass in which the first parameter got no gradient,"
            " where 2 can begin: gradients become ready from the last layer to the first, so fill the buckets from the last,"
            " and start each as soon as it is full."
        )
        run.demand(early >= 2, sentence)
