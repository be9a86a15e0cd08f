"""Part 8 · Better schedules: the public checks, on one and two ranks.

Run one problem with ``make test PART=schedules K=interleaved``.
"""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check import driver_results
from grader.check.api import Probe, call, per_rank, rounding
from grader.reference import chunked, schedule_mistakes, single_device
from grader.reference.chunked import SPLIT, WHOLE
from grader.reference.returned_lists import as_lists

CLOSE = rounding(np.float64)
WEIGHTS = [
    np.array([[1.0, -0.5], [0.5, 1.0]]),
    np.array([[0.75, 1.0], [-1.0, 1.5]]),
    np.array([[1.0, 0.25], [-0.5, 1.0]]),
    np.array([[0.5, -1.0], [1.25, 0.5]]),
]
BATCH = np.array([[1.0, 2.0], [-0.5, 1.5], [2.0, 0.5], [0.25, -1.0]])  # 4 rows of 2 columns
GRAD_Y = np.array([[1.0, -2.0], [0.5, 3.0], [2.0, 1.0], [-1.0, 0.5]])


def judged(run, made, name, kinds, v, m):
    """Return the schedules of all stages as lists of actions.

    ``made`` has the schedules as the student's function returned them. Fail if a schedule is not
    complete, or if the stages cannot execute all schedules together. Each failure message begins
    with ``name``: the function and its arguments, but without the stage.
    """
    stages = [chunked.as_actions(actions) for actions in made]
    for stage, actions in enumerate(stages):
        form = f"{name}, stage {stage}: this is not a list of actions like ('F', 0, 0):"
        run.require(actions is not None, f"{form} {made[stage]!r:.300}")
        if wrong := chunked.complete(actions, kinds, v, m):
            wrong += f".{schedule_mistakes.why_too_early(stage, actions, len(stages))}"
            text = f"{name}, stage {stage}: {wrong}"
            run.require(False, f"{text} The stage's actions: {str(actions)[:300]}")
    end = chunked.makespan(stages, dict.fromkeys(kinds, 1.0))
    if isinstance(end, str):
        run.require(False, f"{name}: {end}{schedule_mistakes.why_stuck(stages)}")
    return stages


def require_same(run, first):
    """Fail unless a second call returns the actions ``first``, after the first list was emptied."""
    (second,) = run.read(chunked.as_actions, "the list of actions of a second call")
    text = (
        "The check emptied the list that the first call returned. The second call then returned"
        f" {second}. Make a new list in each call."
    )
    run.require(second == first, text)


@number("8.1")
@weight(0.25)
def test_chunk_layers(world):
    """chunk_layers cuts 8 layers into 4 parts for 2 stages with 2 chunks each; 10 layers raise
    ValueError
    """
    run, odd = world(
        1,
        call("schedules.chunk_layers", (8, 0, 2, 2), (8, 1, 2, 2), driver="in_turn"),
        call("schedules.chunk_layers", 10, 1, 2, 2, may_raise=True),
    )
    for stage, found in enumerate(run.answers(2)):
        expected = chunked.layers_of_chunks(8, stage, 2, 2)
        text = f"chunk_layers(8, {stage}, 2, 2): expected {expected}, got {found!r:.200}."
        text += schedule_mistakes.why_other_layers(found, 8, stage, 2, 2)
        run.require(as_lists(found) == expected, text)
    odd.raises_value_error("10", "4")


# (stages, chunks, micro-batches): a small case, the case of the figure in the text, a case with one
# chunk on each stage, which is 1F1B, and a case with two chunks on each of three stages. In the
# figure's case, the formula for the length of the warm-up gives more than the number of all forward
# passes.
INTERLEAVED = (2, 2, 4), (4, 2, 4), (3, 1, 6), (3, 2, 6)


@number("8.1")
@weight(0.5)
def test_interleaved(world):
    """The interleaved schedule has each action once, does not deadlock, and stays within the
    docstring's limits of time and memory (four examples)
    """
    runs = world(
        1,
        *(
            call(
                "schedules.interleaved_schedule",
                *((stage, n, v, m) for stage in range(n)),
                driver="in_turn",
            )
            for n, v, m in INTERLEAVED
        ),
        call("schedules.interleaved_schedule", 0, 2, 2, 4, driver="emptied"),
        call("schedules.interleaved_schedule", 0, 2, 2, 3, may_raise=True),
    )
    *made, again, odd = runs
    firsts = [judge_interleaved(run, *shape)[0] for run, shape in zip(made, INTERLEAVED)]
    require_same(again, firsts[0])
    odd.raises_value_error("3", "2")


def judge_interleaved(run, n, v, m):
    """Return the schedules of all stages. Fail if they break a rule of interleaved_schedule."""
    name = f"interleaved_schedule(…, {n}, {v}, {m})"
    stages = judged(run, run.answers(n), name, WHOLE, v, m)
    end = chunked.makespan(stages, {"F": 1, "BW": 2})
    best = 3 * (v * m + n - 1)
    text = (
        f"{name}: if F takes 1 unit of time and BW takes 2, the schedules end at time {end:g}."
        f" They could end at {best}."
    )
    run.require(end <= best, text + schedule_mistakes.why_interleaved_is_late(stages))
    for stage, actions in enumerate(stages):
        most, after = chunked.most_alive(actions)
        limit = chunked.interleaved_alive(stage, n, v)
        text = f"{name}, stage {stage}: after {after}, {most} activations are alive, but at most"
        text += f" {limit} are allowed."
        text += schedule_mistakes.why_interleaved_holds_much(stage, actions, n)
        run.require(most <= limit, f"{text} The schedule: {actions}")
    return stages


@number("8.1")
@weight(0.25)
def test_interleaved_bubble(world):
    """interleaved_bubble returns 3/7 for one chunk and 3/11 for two chunks, with 4 stages and 4
    micro-batches
    """
    cases = [(4, 1, 4), (4, 2, 4)]
    run, odd = world(
        1,
        call("schedules.interleaved_bubble", *cases, driver="in_turn"),
        call("schedules.interleaved_bubble", 4, 2, 6, may_raise=True),
    )
    run.returns(
        [np.array(3 / 7), np.array(3 / 11)],
        tolerance=CLOSE,
        select=lambda found: [np.array(float(value)) for value in found],
        label="the list of fractions",
        known_mistakes=[chunked.bubble_mistakes(cases)],
    )
    odd.raises_value_error("6", "4")


@number("8.2")
@weight(0.5)
def test_halves(world):
    """For two layers, backward_input returns grad_x and each layer's (x, grad_z), and
    backward_weights returns the gradients of the weights
    """
    weights = WEIGHTS[:2]
    saved = single_device.forward(weights, BATCH)[1]
    grad_x, kept, gradients = chunked.chunk_backward(weights, saved, GRAD_Y)
    of_input, of_weights, memory, work = world(
        1,
        call("schedules.backward_input", weights, saved, GRAD_Y),
        call("schedules.backward_weights", kept),
        call("schedules.backward_input", weights, saved, GRAD_Y, driver="described"),
        call("schedules.backward_input", weights, saved, GRAD_Y, driver="metered"),
    )
    of_input.returns(
        grad_x,
        tolerance=CLOSE,
        select=lambda found: found[0],
        label="grad_x",
        known_mistakes=[chunked.input_mistakes(weights, saved, GRAD_Y)],
    )
    of_input.returns(
        kept,
        tolerance=CLOSE,
        select=lambda found: [tuple(pair) for pair in found[1]],
        label="the list kept",
        known_mistakes=[chunked.kept_mistakes(weights, saved, GRAD_Y, kept)],
    )
    of_input.keeps_inputs()
    of_weights.returns(
        gradients,
        tolerance=CLOSE,
        label="the list of the weights' gradients",
        known_mistakes=[chunked.weight_mistakes(kept)],
    )
    of_weights.keeps_inputs()
    (held,) = memory.read(driver_results.kept_bytes, "the memory that the result keeps")
    most = 5 * GRAD_Y.nbytes  # grad_x, and (x, grad_z) of two layers
    memory.require(
        held <= most,
        f"The result of backward_input keeps {held} bytes in memory. grad_x and the pairs (x,"
        f" grad_z) need only {most}. Do not keep z: backward_weights does not use it.",
    )
    enough = 2 * (2 * 4 * 2 * 2)  # operations of (4, 2) @ (2, 2), twice
    done = sum(entry.amount for entry in work.require_products(0, enough))
    work.require(
        done <= enough,
        f"backward_input of 2 layers did {done} floating-point operations in matrix products;"
        f" {enough} are enough, for one product in each layer. Compute the gradients of the weights"
        " in backward_weights, not in backward_input.",
    )


@number("8.3")
@weight(0.5)
def test_zero_bubble(world):
    """The zero-bubble schedule has each action once, does not deadlock, and stays within the
    docstring's limits of time and memory (two examples)
    """
    shapes = (3, 6), (4, 2)
    *made, again, beyond = world(
        1,
        *(
            call("schedules.zero_bubble_schedule", *((s, n, m) for s in range(n)), driver="in_turn")
            for n, m in shapes
        ),
        call("schedules.zero_bubble_schedule", 0, 3, 6, driver="emptied"),
        call("schedules.zero_bubble_schedule", 3, 3, 6, may_raise=True),
    )
    firsts = [judge_zero_bubble(run, *shape)[0] for run, shape in zip(made, shapes)]
    require_same(again, firsts[0])
    beyond.raises_value_error("3")


def judge_zero_bubble(run, n, m):
    """Return the schedules of all stages. Fail if they break a rule of zero_bubble_schedule."""
    name = f"zero_bubble_schedule(…, {n}, {m})"
    stages = judged(run, run.answers(n), name, SPLIT, 1, m)
    for stage, actions in enumerate(stages):
        for limit, ends, what in (
            (n - stage, ("B",), "are between F and B"),
            (n, ("W",), "are alive (between F and W)"),
        ):
            most, after = chunked.most_alive(actions, ends)
            text = f"{name}, stage {stage}: after {after}, {most} micro-batches {what}, but at most"
            text += f" {limit} are allowed."
            text += schedule_mistakes.why_zero_bubble_holds_much(stage, actions, n, ends)
            run.require(most <= limit, f"{text} The schedule: {actions}")
    for f, b, w in ((1, 1, 1), (2, 3, 1)):
        end, best = (
            chunked.makespan(stages, {"F": f, "B": b, "W": w}),
            chunked.zero_bubble_end(n, m, f, b, w),
        )
        text = (
            f"{name}: if F, B and W take {f}, {b} and {w}, the schedules end at {end:g}. ZB-H1 ends"
            f" at {best:g}, and 1F1B at {(m + n - 1) * (f + b + w)}."
        )
        run.require(end <= best, text + schedule_mistakes.why_zero_bubble_is_late(stages))
    return stages


@number("8.3")
@weight(0.25)
def test_run_zero_bubble(world, rng):
    """On two ranks, the zero-bubble schedule with your B and W gives the right loss and gradients,
    and W uses the grad_z that B kept
    """
    n, m = 2, 4
    (made,) = world(
        1, call("schedules.zero_bubble_schedule", (0, n, m), (1, n, m), driver="in_turn")
    )
    stages = judged(made, made.answers(n), "zero_bubble_schedule(…, 2, 4)", SPLIT, 1, m)
    loss, plain = single_device.loss_and_gradients(WEIGHTS, BATCH)
    inputs = [x for x, _ in single_device.forward(WEIGHTS, BATCH)[1]]
    seeds, gains = chunked.changes(rng, stages, [[[0, 1]], [[2, 3]]], inputs, m)
    gradients = [gradient + gain for gradient, gain in zip(plain, gains)]
    chunks = per_rank([WEIGHTS[:2]], [WEIGHTS[2:]])
    x = per_rank(BATCH, None)
    arguments = stages, chunks, x, len(BATCH), m
    changes = per_rank(*([Probe(f"W of {i}", s) for i, s in enumerate(own)] for own in seeds))
    options = {"driver": "chunked", "changes": changes}
    (run,) = world(n, call("schedules.zero_bubble_schedule", *arguments, **options))
    run.returns(
        [gradients[:2]],
        [gradients[2:]],
        tolerance=CLOSE,
        select=lambda found: found[1],
        label="the list of the chunks' gradients",
        known_mistakes=[{chunked.UNCHANGED: [own]} for own in (plain[:2], plain[2:])],
    )
    run.returns(
        None,
        np.asarray(loss),
        tolerance=CLOSE,
        select=lambda found: found[0],
        label="the loss",
    )
