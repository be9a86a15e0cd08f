"""Part 5 · Pipeline parallelism: the public checks, on two stages.

Run one problem with ``make test PART=pipeline_parallel K=schedule``.
"""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check import driver_results
from grader.check.api import Delay, Strided, call, in_strict_order, per_rank, rounding
from grader.reference import pipeline_mistakes, schedules, single_device
from grader.reference.returned_lists import as_lists

# The batch has 9 rows of 4 columns: 3 micro-batches of 3 rows.
BATCH = np.arange(36, dtype=np.float64).reshape(9, 4) / 40
M = 3
WEIGHTS = [
    np.array(
        [
            [1.0, -0.5, 0.0, 0.5],
            [0.5, 1.0, -1.0, 0.0],
            [0.0, 0.25, 1.0, -0.5],
            [-0.5, 0.0, 0.5, 1.0],
        ]
    ),
    np.array(
        [
            [0.5, 1.0, 0.0, -0.5],
            [-1.0, 2.0, 0.5, 0.0],
            [0.0, -0.5, 1.0, 0.25],
            [0.5, 0.0, -0.25, 1.0],
        ]
    ),
    np.array(
        [
            [1.0, 0.5, -0.5, 0.0],
            [0.25, 1.0, 0.0, 0.5],
            [0.0, -0.25, 0.5, 1.0],
            [1.0, 0.0, 0.25, -0.5],
        ]
    ),
]
CUT = [range(0, 2), range(2, 3)]  # stage 0 has two layers, stage 1 has one
STAGES = per_rank(*[[WEIGHTS[layer] for layer in layers] for layers in CUT])
CLOSE = rounding(np.float64)
F, B = "forward", "backward"
# Schedules of M micro-batches. Each is a list: the actions of stage 0, and the actions of stage 1.
GPIPE = [[(F, 0), (F, 1), (F, 2), (B, 0), (B, 1), (B, 2)]] * 2
ONE_FORWARD_ONE_BACKWARD = [
    [(F, 0), (F, 1), (B, 0), (F, 2), (B, 1), (B, 2)],
    [(F, 0), (B, 0), (F, 1), (B, 1), (F, 2), (B, 2)],
]
REVERSED = [GPIPE[0][:3] + GPIPE[0][:2:-1]] * 2
# Stage 0 starts sends that it can only end later, because stage 1 first sends a gradient.
ONLY_LAST_STAGE = [GPIPE[0], ONE_FORWARD_ONE_BACKWARD[1]]
MIXED = [GPIPE[0], [(F, 0), (F, 1), (B, 0), (B, 1), (F, 2), (B, 2)]]


def late(receiver):
    """Return a delay: the receiver begins 0.05 seconds after the sender.

    So a stage that does not wait for its send returns before the send has ended.
    """
    return {receiver: Delay(until="call began", on=1 - receiver, then=0.05)}


@number("5.1")
@weight(0.5)
def test_split_layers(world):
    """split_layers cuts five layers into stages of 2, 2 and 1, and four layers into 2, 1 and 1"""
    cases = {(5, 3): [[0, 1], [2, 3], [4]], (4, 3): [[0, 1], [2], [3]]}
    (run,) = world(1, call("pipeline_parallel.split_layers", *cases, driver="in_turn"))
    for got, (case, expected) in zip(run.answers(2), cases.items()):
        text = f"split_layers{case}: expected the layers {expected}, got {got!r:.300}"
        run.require(as_lists(got) == expected, text)


@number("5.1")
@weight(0.25)
def test_split_layers_misuse(world):
    """split_layers raises ValueError with the numbers if num_stages ≤ 0, or if there are more
    stages than layers
    """
    cases = (((2, 3), ("2", "3")), ((4, 0), ("0",)), ((3, -1), ("-1",)))
    calls = (call("pipeline_parallel.split_layers", *case, may_raise=True) for case, _ in cases)
    for run, (_, numbers) in zip(world(1, *calls), cases):
        run.raises_value_error(*numbers)


@number("5.2")
@weight(1.0)
def test_forward(world):
    """pipeline_forward returns the output of a single device for three micro-batches on two stages,
    and each stage saves (x, z) of its own layers
    """
    name, given = "pipeline_parallel.pipeline_forward", (STAGES, per_rank(BATCH, None), 9)
    # The first call has three micro-batches of three rows. There, a solution that confuses these
    # two numbers gives the right result. So the second call has nine micro-batches of one row.
    run, of_nine, odd, none = world(
        2,
        call(name, *given, M, delays=late(1)),
        call(name, *given, 9),
        call(name, *given, 2, may_raise=True),
        call(name, *given, 0, may_raise=True),
    )
    y, saved = single_device.forward(WEIGHTS, BATCH)
    wrong = pipeline_mistakes.forward_mistakes(WEIGHTS, BATCH, CUT)
    known = [{}, pipeline_mistakes.output_mistakes(y, M) | wrong]
    run.returns(
        None, y, tolerance=CLOSE, select=lambda r: r[0], label="the output", known_mistakes=known
    )
    expected = [pipeline_mistakes.micro_batches(saved, layers, M) for layers in CUT]
    known = pipeline_mistakes.saved_mistakes(saved, CUT, M)
    label = "the returned list saved, [micro-batch][layer][x or z],"
    run.returns(
        *expected, tolerance=CLOSE, select=lambda r: r[1], label=label, known_mistakes=known
    )
    run.keeps_inputs()
    of_nine.returns(
        None,
        y,
        tolerance=CLOSE,
        select=lambda r: r[0],
        label="the output of nine micro-batches",
        known_mistakes=[{}, pipeline_mistakes.output_mistakes(y, 9)],
    )
    odd.raises_value_error("9", "2")
    none.raises_value_error("0")


@number("5.3")
@weight(1.5)
def test_backward(world):
    """pipeline_backward returns the gradients of a single device for three micro-batches on two
    stages
    """
    y, saved = single_device.forward(WEIGHTS, BATCH)
    of_stages = [pipeline_mistakes.micro_batches(saved, layers, M) for layers in CUT]
    turned = [
        [[tuple(Strided(a, "transpose") for a in pair) for pair in one] for one in own]
        for own in of_stages
    ]
    name = "pipeline_parallel.pipeline_backward"
    # In the second run, y and all saved tensors are transposes in memory.
    given = per_rank(None, y), per_rank(None, Strided(y, "transpose"))
    runs = world(
        2,
        call(name, STAGES, per_rank(*of_stages), given[0], delays=late(0)),
        call(name, STAGES, per_rank(*turned), given[1]),
    )
    _, gradients = single_device.loss_and_gradients(WEIGHTS, BATCH)
    for run in runs:
        run.returns(
            *([gradients[layer] for layer in layers] for layers in CUT),
            tolerance=CLOSE,
            known_mistakes=pipeline_mistakes.pipeline_mistakes(WEIGHTS, saved, y, CUT, M),
            label="the list of the weights' gradients",
        )
        run.keeps_inputs()


@number("5.4")
@weight(1.0)
def test_schedules(world):
    """GPipe and 1F1B contain every pass once, in an order that two stages can execute, for three
    micro-batches
    """
    stages = [(stage, 2, 3) for stage in range(2)]
    for run, name in zip(
        world(
            1,
            call("pipeline_parallel.gpipe_schedule", *stages, driver="in_turn"),
            call("pipeline_parallel.one_forward_one_backward_schedule", *stages, driver="in_turn"),
        ),
        ("GPipe", "1F1B"),
    ):
        made = [schedules.as_actions(schedule) for schedule in run.answers(2)]
        for stage, actions in enumerate(made):
            run.require(
                actions is not None,
                f"{name}, stage {stage}: the schedule is not a list of pairs like ('forward', 0).",
            )
            wrong = schedules.complete(actions, 3)
            run.require(
                wrong is None, f"{name}, stage {stage}: {wrong}. The stage's actions: {actions}"
            )
        time = schedules.makespan(made, 1, 1)
        run.require(not isinstance(time, str), f"{name}: {time}.")
        for stage, actions in enumerate(made):
            alive = 3 if name == "GPipe" else 2 - stage
            most, after = schedules.most_alive(actions)
            run.require(
                most == alive,
                f"{name}, stage {stage}: after {after}, {most}"
                f" micro-batch{'es are' if most != 1 else ' is'} alive. The largest number alive"
                f" should be {alive}.{schedules.warm_up(stage, actions, alive)}",
            )
        backward = [[i for kind, i in actions if kind == B] for actions in made]
        run.require(
            backward[0] == backward[1],
            f"{name}: stage 0 runs the backward passes in the order {backward[0]}, and stage 1 in"
            f" the order {backward[1]}. Both stages must use the same order.",
        )


@number("5.4")
@weight(0.25)
def test_schedules_misuse(world):
    """Both schedule functions raise ValueError with the value if the stage does not exist, or if m
    ≤ 0
    """
    cases = [((2, 2, 3), "2"), ((-1, 2, 3), "-1"), ((0, 0, 3), "0"), ((1, 2, 0), "0")]
    made = [
        (f"pipeline_parallel.{name}", *case)
        for name in ("gpipe_schedule", "one_forward_one_backward_schedule")
        for case in cases
    ]
    calls = (call(name, *given, may_raise=True) for name, given, _ in made)
    for run, (*_, number_) in zip(world(1, *calls), made):
        run.raises_value_error(number_)


def run_schedule(of_stages, m=M, **options):
    inputs = STAGES, per_rank(BATCH, None), 9, m
    name, schedule = "pipeline_parallel.run_schedule", per_rank(*of_stages)
    return call(name, schedule, *inputs, driver="with_timeline", **options)


@number("5.5")
@weight(1.0)
def test_run_schedule(world):
    """On two stages, run_schedule returns a single device's loss and gradients with GPipe, 1F1B, a
    schedule between both, and reversed backward passes
    """
    loss, gradients = single_device.loss_and_gradients(WEIGHTS, BATCH)
    y, saved = single_device.forward(WEIGHTS, BATCH)
    mistakes = pipeline_mistakes.pipeline_mistakes(WEIGHTS, saved, y, CUT, M)
    schedules_of_stages = GPIPE, ONE_FORWARD_ONE_BACKWARD, MIXED, REVERSED, ONLY_LAST_STAGE
    for run, own in zip(world(2, *map(run_schedule, schedules_of_stages)), schedules_of_stages):
        taken = pipeline_mistakes.activation_mistakes(WEIGHTS, saved, y, CUT, own)
        run.returns(
            *([gradients[layer] for layer in layers] for layers in CUT),
            tolerance=CLOSE,
            select=lambda r: driver_results.value(r)[1],
            known_mistakes=[a | b for a, b in zip(taken, mistakes)],
            label="the list of the weights' gradients",
        )
        known = {
            "this is divided by the number of micro-batches one time too many": np.array(loss / M),
            (
                "this is the sum of the micro-batches' losses. The loss of the whole batch"
                " is their mean"
            ): np.array(M * loss),
            "this is the loss of only the first micro-batch": np.mean(y[:3] ** 2),
            "this is the loss of only the last micro-batch": np.mean(y[6:] ** 2),
        }
        run.returns(
            None,
            np.array(loss),
            tolerance=CLOSE,
            select=lambda r: driver_results.value(r)[0],
            label="the loss",
            known_mistakes=[{}, {name: np.asarray(value) for name, value in known.items()}],
        )
        run.keeps_inputs()
        for rank, schedule in enumerate(own):
            spans = [span.action for span in run.spans(rank)]
            text = (
                f"rank {rank} recorded {str(spans):.2000} in the timeline; its schedule is"
                f" {schedule}."
            )
            run.require(spans == schedule, text)


@number("5.5")
@weight(0.125)
def test_run_schedule_records_the_loss(world):
    """run_schedule computes the loss and its gradient inside the spans of the last stage"""
    # Each micro-batch has one row. The check recognises work on the loss by its number of entries:
    # this row of y has fewer entries than any weight.
    m = len(BATCH)
    (run,) = world(2, run_schedule([[(kind, i) for kind in (F, B) for i in range(m)]] * 2, m=m))
    _, gradients = single_device.loss_and_gradients(WEIGHTS, BATCH)
    run.returns(
        *([gradients[layer] for layer in layers] for layers in CUT),
        tolerance=CLOSE,
        select=lambda r: driver_results.value(r)[1],
        label="the list of the weights' gradients, of nine micro-batches of one row,",
    )
    schedules.require_loss_in_spans(run, 1, BATCH.shape[1], m)


@number("5.5")
@weight(0.125)
def test_run_schedule_frees(world):
    """run_schedule frees a micro-batch's saved tensors after its backward pass: with 1F1B, 12
    micro-batches need no more memory than 3
    """
    few, many = M, 12
    ahead = [(F, 0), *((kind, i + (kind == F)) for i in range(many) for kind in (F, B))][:-2]
    in_turn = [(kind, i) for i in range(many) for kind in (F, B)]
    long = np.tile(BATCH, (many // few, 1))
    inputs = STAGES, per_rank(long, None), len(long), many
    of_few, of_many = world(
        2,
        run_schedule(ONE_FORWARD_ONE_BACKWARD),
        call(
            "pipeline_parallel.run_schedule",
            per_rank([*ahead, (B, many - 1)], in_turn),
            *inputs,
            driver="with_timeline",
        ),
    )
    for rank, layers in enumerate(CUT):
        saved = 2 * len(layers) * BATCH.nbytes // M  # x and z of each layer
        first, second = (
            max(entry.alive for entry in run.require_products(rank, 1)) for run in (of_few, of_many)
        )
        of_many.require(
            second - first <= (many - few) * saved / 2,
            f"rank {rank}, 1F1B: the largest number of bytes alive was {first} with {few}"
            f" micro-batches, and {second} with {many}. On this stage, the saved tensors of one"
            f" micro-batch take {saved} bytes. What keeps memory after the micro-batch's backward"
            " pass? (A Work keeps the tensor that it sends, until you call wait().)",
        )


@number("5.5")
@weight(0.125)
@in_strict_order
def test_run_schedule_in_the_order_of_gpus(world):
    """run_schedule runs GPipe and 1F1B without deadlock on two stages if a rank's operations run in
    order, as on GPUs
    """
    _, gradients = single_device.loss_and_gradients(WEIGHTS, BATCH)
    y, saved = single_device.forward(WEIGHTS, BATCH)
    for run in world(2, run_schedule(GPIPE), run_schedule(ONE_FORWARD_ONE_BACKWARD)):
        run.returns(
            *([gradients[layer] for layer in layers] for layers in CUT),
            tolerance=CLOSE,
            select=lambda r: driver_results.value(r)[1],
            known_mistakes=pipeline_mistakes.pipeline_mistakes(WEIGHTS, saved, y, CUT, M),
            label="the list of the weights' gradients",
        )


@number("5.5")
@weight(0.125)
def test_run_schedule_misuse(world):
    """run_schedule raises ValueError on both stages if m ≤ 0, if m does not divide the batch size,
    or if the schedule misses or repeats a pass
    """
    own = GPIPE[0]
    broken = [own[:-1], [*own, (F, 0)], [*own[:-1], (B, 1)]]
    of_four = [(F, i) for i in range(4)] + [(B, i) for i in range(4)]
    *runs, odd, none = world(
        2,
        *(run_schedule([schedule] * 2, may_raise=True) for schedule in broken),
        run_schedule([of_four] * 2, m=4, may_raise=True),
        run_schedule([[]] * 2, m=0, may_raise=True),
    )
    for run, schedule in zip(runs, broken):
        run.raises_value_error("3", given=f"the schedule {schedule} of 3 micro-batches")
    odd.raises_value_error("9", "4")
    none.raises_value_error("0")


@number("5.6")
@weight(0.5)
def test_bubble(world):
    """bubble_fraction is 3/7 for four stages and four micro-batches; measured_bubble is 1/3 for two
    stages that each work 2 of 3 seconds
    """
    spans = [[(F, 0, 5.0, 6.0), (B, 0, 7.0, 8.0)], [(F, 0, 6.0, 8.0)]]
    theory, measured = world(
        1,
        call("pipeline_parallel.bubble_fraction", 4, 4),
        call("pipeline_parallel.measured_bubble", spans, driver="of_spans"),
    )
    of_ideal = {
        "this is the idle time divided by the ideal time. Divide it by the total time": np.array(
            3 / 4
        ),
        "n stages need m + n − 1 time slots for m micro-batches, not m + n": np.array(3 / 8),
    }
    theory.returns(
        np.array(3 / 7),
        tolerance=CLOSE,
        select=lambda r: np.array(float(r)),
        known_mistakes=[of_ideal],
    )
    known = {
        schedules.OWN_WINDOWS: np.array(0.2),
        "the total time was counted from 0, but the earliest span starts at 5": np.array(0.75),
        schedules.OF_ONE_STAGE: np.array(-1 / 3),
        schedules.WORK: np.array(2 / 3),
    }
    measured.returns(
        np.array(1 / 3),
        tolerance=CLOSE,
        select=lambda r: np.array(float(driver_results.fractions(r)[0])),
        label=(
            "the bubble of two stages (stage 0 works from 5 s to 6 s and from 7 s to 8 s, stage 1"
            " from 6 s to 8 s)"
        ),
        known_mistakes=[known],
    )


@number("5.6")
@weight(0.25)
def test_bubble_misuse(world):
    """bubble_fraction raises ValueError if there is no stage or no micro-batch, and measured_bubble
    if no timeline has a span
    """
    fraction, measured = "pipeline_parallel.bubble_fraction", "pipeline_parallel.measured_bubble"
    no_stages, no_micro_batches, no_spans = world(
        1,
        call(fraction, 0, 3, may_raise=True),
        call(fraction, 3, -4, may_raise=True),
        call(measured, [[], []], driver="of_spans", may_raise=True),
    )
    no_stages.raises_value_error("0")
    no_micro_batches.raises_value_error("-4")
    no_spans.raises_value_error(given="two stages without a span")
