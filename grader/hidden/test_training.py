"""Problem 3.4 · The hidden checks of training with data parallelism.

They compare the ranks' results with those of a single device in float64.
"""

from dataclasses import dataclass

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check import driver_results
from grader.check.api import Request, Strided, Tolerance, call, listed, on_gloo, per_rank, rounding
from grader.hidden.data_parallel_problem import (
    averages_own_gradients,
    cast,
    late,
    many_rows,
    memory_orders,
    problem,
)
from grader.hidden.given_tensors import rank_layout
from grader.hidden.two_calls import in_turn, returns_both
from grader.hidden.world_sizes import SIZES
from grader.reference import single_device
from grader.reference.data_parallel import OTHER_MEMORY, require_average
from grader.reference.optimizer_reports import optimizer_hint, require_default_adamw
from grader.reference.training_mistakes import STRIDED_KEPT, training_mistakes

# If the gradient of an entry is no larger than AdamW's ε, an error of 1e−17 in the gradient becomes
# an error of 1e−9 · lr in a step.
LONG = Tolerance(1e-9, "several AdamW steps in float64")


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
    """Return trainings of one step, of 6 to 8 steps, and of 2 to 4 steps with large numbers.

    The training of one step has one row for each rank. In the training of 6 to 8 steps, the memory
    layout of tensors differs from rank to rank, and all ranks except rank 0 begin late. Each rank
    has so many rows that a program that gathers them exceeds the limit of
    ``averages_own_gradients``. Of the last two trainings, one has more than 3 layers.
    """
    layers, of_scaled = rng.permutation([rng.integers(2, 4), rng.integers(4, 7)]).tolist()
    sizes = (int(rng.integers(6, 9)), layers, many_rows(layers), np.float64)
    long = _training(rng, n, sizes, LONG, lr=0.02, delays=late(n))
    made = [_training(rng, n, (1, 1, 1, np.float32), rounding(np.float32)), long]
    # Large gradients, with a norm in the thousands, must not be clipped.
    sizes = (int(rng.integers(2, 5)), of_scaled, 3, np.float64)
    made.append(_training(rng, n, sizes, rounding(np.float64), scale=100))
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
            " training. Before training, none of these tensors required a gradient. Undo this"
            " before you return: weight.requires_grad_(False).",
        )


@number("3.4")
@weight(1.0)
def test_train_weights(world, rng):
    """train averages the gradients in each step: the caller's weights become those of a single
    device (1 to 8 steps, 1 to 4 ranks), and all other arguments stay unchanged
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
    """train returns the losses of the whole batch before each update, the same on every rank, also
    if the same tensors are trained again
    """
    for n in SIZES:
        made, (first, again) = trainings(rng, n), _trained_again(rng, n)
        both = in_turn(n, first.request, again.request, driver="refilled")
        *runs, of_both = world(n, *(training.request for training in made), both)
        for run, training in zip(runs, made):
            run.returns(
                *[np.array(training.after[1], training.weights[0].dtype)] * n,
                tolerance=training.tolerance,
                select=lambda r: r[0],
                label="the tensor of losses",
                known_mistakes=training.loss_mistakes,
                otherwise=optimizer_hint(run.values()[0], training.lr),
            )
        losses, later = ([np.array(training.after[1])] * n for training in (first, again))
        returns_both(
            of_both,
            losses,
            later,
            what="tensors of losses",
            select=lambda r: r[0],
            tolerance=LONG,
            otherwise=(
                "does train make a new optimizer in each call? The weights may still have the"
                " `grad` of the first call: is it cleared before the first backward pass?"
            ),
        )


def _trained_again(rng, n):
    """Return two trainings of equal sizes, for the driver ``refilled``."""
    sizes = (int(rng.integers(2, 6)), int(rng.integers(1, 4)), int(rng.integers(1, 6)), np.float64)
    return [_training(rng, n, sizes, LONG, lr=0.02) for _ in range(2)]
