"""Problems 3.1 to 3.4 · The hidden checks of data parallelism.

They compare the ranks' results with those of a single device in float64.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check import driver_results
from grader.check.api import (
    Delay,
    Request,
    RequiresGrad,
    Strided,
    Tolerance,
    call,
    listed,
    mixed,
    on_gloo,
    per_rank,
    rounding,
)
from grader.hidden.given_tensors import drawn_weights, rank_layout
from grader.reference import single_device
from grader.reference.data_parallel import (
    OTHER_MEMORY,
    PASSED_BY,
    left_out,
    loss_mistakes,
    require_average,
    step_mistakes,
)
from grader.reference.optimizer_reports import optimizer_hint, require_default_adamw
from grader.reference.training_mistakes import STRIDED_KEPT, training_mistakes

SIZES = (1, 2, 3, 4)
# The number of rows of a rank. A program that gathers these rows exceeds the limit of
# ``averages_own_gradients``, even if it sends only 12 bits for each number.
MANY_ROWS = 200
OVERWRITTEN = (
    "the first step's gradients were overwritten by the second step's. Return"
    " new tensors from each step"
)
MEAN = "this is the mean over the ranks. Every rank must get the root's own values"


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
    """Fail if the ranks send too little to average their gradients, or much more than that needs.

    ``own_rows`` are the rows of one rank, a tensor for each step. The upper limit is so high that
    no right program exceeds it. (Another check judges the exact traffic.) But a program that
    gathers large shards exceeds it. If the shards are too small for that, there is no upper limit
    here: ``test_step_traffic`` judges shards of all sizes.
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


@number("3.1")
@weight(1.0)
def test_shard_batch(world, rng):
    """shard_batch gives each rank its own rows of a batch of any shape, and the shards together are
    the batch (1 to 4 ranks)
    """
    for n in SIZES:
        batches = [
            rng.standard_normal((3 * n, 5)),
            rng.integers(0, 99, (n, 2, 3)),
            rng.standard_normal(2 * n),
            rng.standard_normal((2 * n, 3)).astype(np.float32),
        ]
        first, *others = batches
        given = [mixed(*[first] * n), *others[:2], Strided(others[2], "slice")]
        for run, batch in zip(
            world(n, *(call("data_parallel.shard_batch", own) for own in given)), batches
        ):
            interleaved = [
                {"every n-th row was taken. Take consecutive rows": batch[r::n]} for r in range(n)
            ]
            run.returns(*np.split(batch, n), known_mistakes=interleaved if n > 1 else None)
            run.keeps_inputs()
            for rank in range(n):
                done = run.operations(rank)
                run.require(
                    not done,
                    f"rank {rank} communicated, although every rank has the whole batch:"
                    f" {', '.join(map(str, done[:1]))}",
                )


@number("3.1")
@weight(0.5)
def test_shard_batch_misuse(world, rng):
    """shard_batch raises ValueError with both numbers if n does not divide the batch size"""
    for n, sizes in ((3, (10, 2)), (4, (2,))):
        requests = [
            call("data_parallel.shard_batch", rng.standard_normal((rows, 3)), may_raise=True)
            for rows in sizes
        ]
        for run, rows in zip(world(n, *requests), sizes):
            run.raises_value_error(str(rows), str(n))


@number("3.2")
@weight(0.75)
def test_broadcast_parameters(world, rng):
    """broadcast_parameters gives every rank the root's values, for every root of 1 to 4 ranks, any
    shape, dtype and layout
    """
    ways = ("generator", "views", "plain", "plain")  # model.parameters() is a generator
    for n in SIZES:
        own = [_parameters(rng) for _ in range(n)]
        given = per_rank(
            *([own[rank][0], *_laid_out(own[rank][1:], rank_layout(rank))] for rank in range(n))
        )
        requests = [
            call(
                "data_parallel.broadcast_parameters",
                given,
                driver=ways[root],
                **({"root": root} if root else {}),
            )
            for root in range(n)
        ]
        single = per_rank(*([values[1]] for values in own))
        delays = {n - 1: Delay(until="", on=0, patience=1)} if n > 1 else {}
        requests.append(
            call("data_parallel.broadcast_parameters", single, root=n - 1, delays=delays)
        )
        *runs, last = world(n, *requests)
        for root, run in enumerate(runs):
            _overwrites(run, own, root, ways[root])
        _overwrites(last, [values[1:2] for values in own], n - 1, "plain")


@number("3.2")
@weight(0.25)
@on_gloo
def test_broadcast_replaces_everything(world, rng):
    """broadcast_parameters overwrites any previous values, also infinities and NaN"""
    for n in (2, 3):
        # If the root's values become nan, they were combined with values of other ranks. If a
        # rank's result is inf, the values of rank 0 were copied instead of the root's.
        values, of_others = rng.standard_normal((2, 3)), {0: np.inf, 2: np.nan}
        given = per_rank(
            *([np.full((2, 3), of_others[rank]) if rank != 1 else values] for rank in range(n))
        )
        (run,) = world(n, call("data_parallel.broadcast_parameters", given, root=1))
        of_root = run.first_arguments()[1]
        spoiled = isinstance(of_root, list) and all(
            isinstance(v, np.ndarray) and np.isnan(v).any() for v in of_root
        )
        text = (
            "the root's own values became nan. They were combined with the other ranks' values,"
            " which are inf or nan here. Multiplying these by 0 does not remove them: inf · 0 and"
            " nan · 0 are nan. Send the root's values by a broadcast."
        )
        run.require(not spoiled, text)
        run.leaves_arguments(
            *[[values]] * n, label="the list of the caller's parameters after the call"
        )


def _parameters(rng):
    return [
        rng.standard_normal(5).astype(np.float32),
        rng.standard_normal((2, 3)),
        np.asarray(rng.standard_normal((3, 2))),
        np.asarray(rng.standard_normal(())),
        rng.standard_normal(4).astype(np.float16),
    ]


def _laid_out(parameters, how):
    """Return the parameters. The two matrices get the memory layout that ``how`` names.

    ``parameters`` is the result of ``_parameters`` without its first tensor: two matrices, a scalar
    and a vector. In the result, the second matrix and the vector require a gradient.
    """
    matrix, other, scalar, vector = parameters
    return [Strided(matrix, how), RequiresGrad(Strided(other, how)), scalar, RequiresGrad(vector)]


def _overwrites(run, own, root, way):
    n, count = len(own), len(own[0])
    views = (
        run.read(driver_results.views, "the parameters")
        if way == "views"
        else run.first_arguments()
    )
    known = []
    for rank, mine in enumerate(own):
        strided = {1, 2} if rank_layout(rank) != "contiguous" and count > 1 else set()
        known.append(left_out(views[rank], mine, own[root], {0, 1, 3}, strided))
        if n > 1:
            known[rank][MEAN] = [np.asarray(sum(v) / n, v[0].dtype) for v in zip(*own)]
        if run.marks(rank, "gone through again"):
            known[rank][PASSED_BY] = mine
    label = "the list of the caller's parameters after the call"
    if way == "views":
        run.returns(
            *[own[root]] * n, select=driver_results.views, label=label, known_mistakes=known
        )
        label = "the memory of the caller's parameters"
        known = [{OTHER_MEMORY: mine} for mine in own]
    run.leaves_arguments(*[own[root]] * n, label=label, known_mistakes=known)
    run.keeps_gradient_flags()
    run.returns(*[None] * n, select=driver_results.value if way == "views" else None)


@number("3.2")
@weight(0.25)
def test_broadcast_parameters_misuse(world, rng):
    """A root that is not a rank raises ValueError with the root's number"""
    parameters = [rng.standard_normal(3)]
    for n in (2, 1):
        roots = (n, -1)
        requests = [
            call("data_parallel.broadcast_parameters", parameters, root=root, may_raise=True)
            for root in roots
        ]
        for run, root in zip(world(n, *requests), roots):
            run.raises_value_error(str(root), given=f"root={root} on {n} rank{'s' * (n > 1)}")


def step_problems(rng, n):
    """Return problems of several sizes, and their calls.

    In the first problem, the memory layout of tensors differs from rank to rank, and all ranks
    except rank 0 begin late. The shards are much larger than the gradients in the first problem,
    and much smaller in the last problem: see ``averages_own_gradients``.
    """
    problems = [
        problem(rng, n, rows=MANY_ROWS),
        problem(rng, n, layers=2, dtype=np.float32),
        problem(rng, n, layers=1, width=1, rows=1),  # the example in the docstring of the stub
        problem(rng, n, layers=2, rows=1),
    ]
    weights, _, shards = problems[0]
    given = per_rank(*([Strided(w, rank_layout(rank)) for w in weights] for rank in range(n)))
    requests = [call("data_parallel.data_parallel_step", given, mixed(*shards), delays=late(n))]
    for weights, _, shards in problems[1:]:
        requests.append(call("data_parallel.data_parallel_step", weights, per_rank(*shards)))
    return problems, requests


@number("3.3")
@weight(3.0)
def test_step_gradients(world, rng):
    """data_parallel_step returns the gradients of the whole batch on 1 to 4 ranks, in float32 and
    float64, also in a second step
    """
    for n in SIZES:
        problems, requests = step_problems(rng, n)
        weights, _, shards = problems[-1]
        again = call("data_parallel.data_parallel_step", weights, per_rank(*shards), driver="twice")
        other = problem(rng, n, layers=2, rows=1)
        turns = [per_rank(*([weights, shard] for shard in own)) for own in (shards, other[2])]
        in_turn = call("data_parallel.data_parallel_step", *turns, driver="in_turn")
        *runs, twice, kept = world(n, *requests, again, in_turn)
        # Only in the first problem, layouts differ from rank to rank.
        orders_of_problems = [memory_orders(n)] + [()] * (len(problems) - 1)
        for run, (weights, batch, shards), orders in zip(runs, problems, orders_of_problems):
            gradients = cast(single_device.loss_and_gradients(weights, batch)[1], batch.dtype)
            run.returns(
                *[gradients] * n,
                tolerance=rounding(batch.dtype),
                select=lambda r: r[1],
                label="the list of gradients",
                known_mistakes=partial(_of_step, weights, shards, gradients, orders),
            )
            averages_own_gradients(run, weights, shards[:1])
            run.keeps_inputs()
        _does_not_accumulate(twice, gradients, n)
        later = cast(single_device.loss_and_gradients(weights, other[1])[1], np.float64)
        kept.returns(
            *[[gradients, later]] * n,
            tolerance=rounding(np.float64),
            select=lambda r: [own[1] for own in r],
            label="the list of the gradients of two steps, read after both steps, [step][layer],",
            known_mistakes=[{OVERWRITTEN: [later, later]}] * n,
        )


def _of_step(weights, shards, gradients, orders):
    local = [
        cast(single_device.loss_and_gradients(weights, shard)[1], shard.dtype) for shard in shards
    ]
    means = loss_mistakes(gradients, *shards[0].shape)
    return [own | means for own in step_mistakes(local, orders)]


def _does_not_accumulate(run, gradients, n):
    """Fail if a second step with the same weight tensors adds to the first step's gradients."""
    run.returns(
        *[gradients] * n,
        tolerance=rounding(np.float64),
        select=lambda r: r[1][1],
        label="the list of gradients of a second step with the same weights",
        known_mistakes=[
            {
                "the second step's gradients were added to the first's": [2 * g for g in gradients],
                (
                    "the second step's gradients were added to the sum of the first step's"
                    " gradients over the ranks"
                ): [(n + 1) * g for g in gradients],
            }
        ]
        * n,
    )


@number("3.3")
@weight(1.0)
@on_gloo
def test_step_loss_is_local(world, rng):
    """data_parallel_step returns the loss of each rank's own shard, and the mean of these losses is
    the loss of the whole batch
    """
    for n in SIZES:
        problems, requests = step_problems(rng, n)
        for run, (weights, batch, shards) in zip(world(n, *requests), problems):
            local = [
                np.array(single_device.loss_and_gradients(weights, shard)[0], batch.dtype)
                for shard in shards
            ]
            whole = np.array(single_device.loss_and_gradients(weights, batch)[0])
            averaged = (
                {"this is the loss of the whole batch. Return the local loss": whole}
                if n > 1
                else {}
            )
            known = [loss_mistakes([own], *shards[0].shape) for own in local]
            run.returns(
                *local,
                tolerance=rounding(batch.dtype),
                select=lambda r: r[0],
                label="the local loss",
                known_mistakes=[
                    averaged | {sentence: own for sentence, (own,) in means.items()}
                    for means in known
                ],
            )


@number("3.3")
@weight(0.5)
def test_step_traffic(world, rng):
    """For shards of any size, each rank computes with its own rows, and sends only the bytes of one
    all-reduce of each gradient
    """
    for n in (2, 3, 4):
        # A shard has from 1/144 to more than twice as many bytes as all gradients together. The
        # gradients are so large that ranks can exchange them only by messages, and not by a side
        # channel, such as the number of threads that a rank starts. The number of a gradient's
        # entries, 2304, is divisible by n and by 256, so no algorithm has to pad a gradient.
        problems = [
            problem(rng, n, rows=rows, width=48) for rows in (320, 1, int(rng.integers(8, 80)))
        ]
        # A rank must not send float32 gradients as float64.
        problems.append(problem(rng, n, layers=2, width=48, dtype=np.float32))
        requests = [
            call("data_parallel.data_parallel_step", weights, per_rank(*shards), driver=driver)
            for weights, _, shards in problems
            for driver in ("plain", "metered")
        ]
        runs = world(n, *requests)
        for run, metered, (weights, batch, shards) in zip(runs[::2], runs[1::2], problems):
            gradients = cast(single_device.loss_and_gradients(weights, batch)[1], batch.dtype)
            run.returns(
                *[gradients] * n,
                tolerance=rounding(batch.dtype),
                select=lambda r: r[1],
                label="the list of the weights' gradients",
            )
            size = sum(w.nbytes for w in weights)
            for own in (run, metered):
                require_average(own, size)
                _sends_only_gradients(own, size, shards[0])
            _computes_with_own_rows(metered, weights, shards[0])


def _sends_only_gradients(run, size, shard):
    """Fail if a rank sends more bytes than an average of gradients of ``size`` bytes takes."""
    n = run.report.size
    for rank in range(n):
        done = [o for o in run.operations(rank) if o.kind != "recv"]
        sent = sum(o.traffic for o in done)
        run.require_communication(rank, sent > 0)
        allowed = 2 * (n - 1) / n * size
        sentence = (
            f"rank {rank} sends {sent:.0f} bytes: {listed(done)}. The gradients"
            f" together have {size} bytes, so {allowed:.0f} are enough. (The rank's shard of the"
            f" batch has {shard.nbytes} bytes.) Send only the gradients: no rows, weights,"
            " activations or losses. Send them in the dtype of the weights."
        )
        # Thirds of bytes do not add up exactly.
        run.require(sent < allowed + 0.5, sentence)


def _computes_with_own_rows(run, weights, shard):
    """Fail if a rank multiplies as much as the gradients of the whole batch take, or too little.

    For its own rows, a rank needs 1/n of these products. Even a program that runs its forward pass
    three times stays below the limit on two ranks. The call's driver must be ``metered``. The meter
    sees only torch's products, so a program that multiplies elsewhere could exceed the limit.
    """
    n, product = run.report.size, 2 * len(shard) * weights[0].size
    # For each layer there are one product forward and two backward. The gradient of the batch is
    # not needed.
    needed = (3 * len(weights) - 1) * product
    for rank in range(n):
        # Each layer needs a product forward, and a product for its weight's gradient.
        products = run.require_products(rank, 2 * len(weights) * product)
        done = sum(entry.amount for entry in products)
        sentence = (
            f"rank {rank} computed products of matrices with {done} floating-point operations. The"
            f" gradients of its own {len(shard)} rows take {needed}, and those of all"
            f" {n * len(shard)} rows take {n * needed}. Likely: the rank computes with the rows of"
            " other ranks, too. Compute the gradients of the rank's own shard, and average them."
        )
        run.require(done < n * needed, sentence)


@dataclass(frozen=True)
class Training:
    """A call of ``train``, with its inputs ``weights``, ``shards[rank][step]`` and ``lr``.

    ``after`` contains the weights, the losses and the optimizer's states that a single device has
    after the training.
    """

    request: Request
    weights: list
    shards: list
    lr: float
    after: tuple
    tolerance: Tolerance  # for values that depend on the weights

    def weight_mistakes(self):
        known, _ = self._mistakes()
        strided = [
            len(self.shards[0]) > 1 and rank_layout(rank) != "contiguous"
            for rank in range(len(known))
        ]
        return [
            ({STRIDED_KEPT: self.weights} if is_strided else {}) | own
            for own, is_strided in zip(known, strided)
        ]

    def loss_mistakes(self):
        return self._mistakes()[1]

    def _mistakes(self):
        orders = memory_orders(len(self.shards)) if len(self.shards[0]) > 1 else ()
        return training_mistakes(self.weights, self.shards, self.lr, orders)


def trainings(rng, n):
    """Return a training of one step and a training of five steps.

    The training of one step has one row for each rank. In the training of five steps, the memory
    layout of tensors differs from rank to rank, and all ranks except rank 0 begin late. Each rank
    has so many rows that a program that gathers them exceeds the limit of
    ``averages_own_gradients``. On two ranks, also return a training of two steps with large
    numbers.
    """
    # If the gradient of an entry is no larger than AdamW's ε, an error of 1e−17 in the gradient
    # becomes an error of 1e−9 · lr in the step.
    tolerance = Tolerance(1e-9, "five AdamW steps in float64")
    long = _training(rng, n, (5, 3, MANY_ROWS, np.float64), tolerance, lr=0.02, delays=late(n))
    made = [_training(rng, n, (1, 1, 1, np.float32), rounding(np.float32)), long]
    if n == 2:  # large gradients, with a norm in the thousands, must not be clipped
        made.append(_training(rng, n, (2, 2, 3, np.float64), rounding(np.float64), scale=100))
    return made


def _training(rng, n, sizes, tolerance, scale=1, **options):
    steps, layers, rows, dtype = sizes
    weights, _, _ = problem(rng, n, layers=layers, dtype=dtype)
    batches = [scale * problem(rng, n, rows=rows, dtype=dtype)[1] for _ in range(steps)]
    shards = [[np.split(batch, n)[rank] for batch in batches] for rank in range(n)]
    lay = rank_layout if steps > 1 else lambda rank: "contiguous"
    given = [
        per_rank(
            *(
                [Strided(array, lay(rank)) for array in arrays]
                for rank, arrays in enumerate(of_ranks)
            )
        )
        for of_ranks in ([weights] * n, shards)
    ]
    lr = options.get("lr", 1e-3)  # the default value in the signature of train
    request = call("data_parallel.train", *given, **options)
    return Training(
        request, weights, shards, lr, single_device.adamw(weights, batches, lr), tolerance
    )


def run_trainings(world, rng, n):
    made = trainings(rng, n)
    return zip(world(n, *(training.request for training in made)), made)


def sends_what_steps_need(run, training):
    """Fail unless the ranks average their gradients, and send nothing more except losses."""
    n, steps = run.report.size, len(training.shards[0])
    size = sum(w.nbytes for w in training.weights)
    require_average(run, steps * size)
    allowed = steps * (2 * (n - 1) / n * size + 16 * n)  # a loss has at most 8 bytes
    for rank in range(n):
        done = run.operations(rank)
        sent = sum(o.traffic for o in done)
        run.require(
            sent <= allowed,
            f"rank {rank} sends {sent:.0f} bytes in {steps} steps: {listed(done)}. The gradients"
            f" of one step have {size} bytes. Each step needs one average of all gradients and of"
            f" the loss, so {allowed:.0f} bytes are enough for all steps.",
        )


def updates_what_it_was_given(run, training):
    """Fail unless the caller's own tensors have the new weights, and the optimizer updates them.

    The call's driver must be ``trained``.
    """
    n, after = run.report.size, cast(training.after[0], training.weights[0].dtype)
    run.returns(
        *[after] * n,
        tolerance=training.tolerance,
        select=driver_results.views,
        label="the list of weights after training",
        known_mistakes=training.weight_mistakes,
    )
    run.leaves_arguments(
        *[after] * n,
        label="the memory of the caller's weights after training",
        tolerance=training.tolerance,
        known_mistakes=[{OTHER_MEMORY: training.weights}] * n,
    )
    for rank, is_over_them in enumerate(
        run.read(driver_results.is_over_weights, "the record of the optimizer's weights")
    ):
        run.require(
            is_over_them,
            f"the parameters of rank {rank}'s optimizer are not the tensors in the argument"
            " `weights`, or they are in another order. Create the optimizer from `weights`, not"
            " from copies.",
        )
    for rank, requires in enumerate(
        run.read(driver_results.does_argument_require_gradient, "its input's flag requires_grad")
    ):
        run.require(
            not requires,
            f"on rank {rank}, a tensor of `weights` or `shards` requires a gradient after"
            " training. Before training, none of them did. Before you return, undo this:"
            " weight.requires_grad_(False).",
        )


@number("3.4")
@weight(1.0)
def test_train_weights(world, rng):
    """train averages the gradients in each step: the caller's weights become those of a single
    device (1 and 5 steps, 1 to 4 ranks), and all other arguments stay unchanged
    """
    for n in SIZES:
        for run, training in run_trainings(world, rng, n):
            require_default_adamw(run)
            sends_what_steps_need(run, training)
            dtype = training.weights[0].dtype
            run.leaves_arguments(
                *[cast(training.after[0], dtype)] * n,
                label="the list of weights after training",
                tolerance=training.tolerance,
                known_mistakes=training.weight_mistakes,
                otherwise=optimizer_hint(run.values()[0], training.lr),
            )
            run.keeps_inputs(in_place=True)
        watched = _training(rng, n, (2, 2, 3, np.float64), rounding(np.float64), driver="trained")
        (run,) = world(n, watched.request)
        updates_what_it_was_given(run, watched)


@number("3.4")
@weight(1.0)
def test_train_state(world, rng):
    """train returns an AdamW that made its steps with averaged gradients: its moments and step
    count are those of a single device
    """
    for n in SIZES:
        for run, training in run_trainings(world, rng, n):
            require_default_adamw(run)
            states, count = training.after[2], len(training.weights)
            for name in ("exp_avg", "exp_avg_sq"):
                run.returns(
                    *[cast([state[name] for state in states], training.weights[0].dtype)] * n,
                    tolerance=training.tolerance,
                    select=lambda r: [r[1]["state"][str(i)][name] for i in range(count)],
                    label=f"the optimizer's {name}",
                    otherwise=optimizer_hint(run.values()[0], training.lr),
                )
            run.returns(
                *["AdamW"] * n, select=lambda r: r[1]["optimizer"], label="the optimizer's type"
            )
            due = float(len(training.shards[0]))
            run.returns(
                *[np.full(count, due)] * n,
                select=lambda r: np.array(
                    [float(np.asarray(r[1]["state"][str(i)]["step"])) for i in range(count)]
                ),
                label="the number of steps that the optimizer counted for each weight",
            )
            averages_own_gradients(run, training.weights, training.shards[0])


@number("3.4")
@weight(1.0)
@on_gloo
def test_train_losses(world, rng):
    """train returns the losses of the whole batch before each update, the same on every rank"""
    for n in SIZES:
        for run, training in run_trainings(world, rng, n):
            run.returns(
                *[np.array(training.after[1], training.weights[0].dtype)] * n,
                tolerance=training.tolerance,
                select=lambda r: r[0],
                label="the tensor of losses",
                known_mistakes=training.loss_mistakes,
                otherwise=optimizer_hint(run.values()[0], training.lr),
            )
