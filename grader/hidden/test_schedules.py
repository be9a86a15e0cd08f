"""Problem 8.1 · The hidden checks of interleaved 1F1B.

They judge schedules as lists: their actions, the time that they take, and the number of activations
that stay alive.
"""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check.api import call, rounding
from grader.hidden.chunked_problem import (
    ChunkedProblem,
    asked_again,
    made_by,
    require_new_list,
    require_same,
)
from grader.reference import better_schedules, chunked, schedule_mistakes
from grader.reference.chunked import WHOLE
from grader.reference.counting import counted
from grader.reference.returned_lists import as_lists

CLOSE = rounding(np.float64)

# Each check also asks for shapes drawn at random: see ``interleaved``. Some shapes have many more
# micro-batches than stages. A program that runs all forward passes first fails only there.
# (stages, chunks, micro-batches)
INTERLEAVED = [
    *((1, v, m) for v in (1, 2, 3) for m in (1, 3)),
    *((2, v, m) for v in (1, 2, 3, 5) for m in (2, 4, 6)),
    *((3, v, m) for v in (1, 2, 3) for m in (3, 9)),
    *((4, v, m) for v in (1, 2, 3) for m in (4, 8)),
    (6, 2, 12),
    (8, 4, 16),
    (2, 2, 16),
]


def interleaved(world, rng):
    """Return ``made_by`` for the shapes in INTERLEAVED and for five shapes drawn at random."""
    drawn = [tuple(map(int, rng.integers((2, 1, 1), (10, 5, 4)))) for _ in range(3)]
    drawn.append(tuple(map(int, rng.integers((2, 1, 6), (5, 4, 13)))))  # many micro-batches
    drawn.append(tuple(map(int, rng.integers((12, 1, 1), (21, 3, 3)))))  # many stages
    shapes = [*INTERLEAVED, *((n, v, k * n) for n, v, k in drawn)]
    return made_by(world, "interleaved_schedule", shapes, WHOLE)


@number("8.1")
@weight(0.25)
def test_chunk_layers(world, rng):
    """chunk_layers gives chunk c of stage s the layers of part c·n + s; wrong numbers raise
    ValueError with the numbers
    """
    cases = [
        (each * n * v, stage, n, v)
        for n, v, each in ((1, 1, 1), (1, 3, 2), (2, 1, 3), (2, 2, 1), (3, 2, 2), (4, 3, 1))
        for stage in range(n)
    ]
    for n, v, each in rng.integers((1, 1, 1), (9, 6, 7), (3, 3)).tolist():
        cases.append((each * n * v, int(rng.integers(n)), n, v))
    bad = (
        ((10, 0, 2, 2), ("10", "4")),
        ((3, 1, 2, 2), ("3", "4")),
        ((0, 0, 1, 2), ("0",)),
        ((-4, 0, 2, 2), ("-4",)),
        ((8, 2, 2, 2), ("2",)),
        ((8, -1, 2, 2), ("-1",)),
        ((8, 0, 0, 2), ("0",)),
        ((8, 0, -2, 2), ()),  # the message may name the stage or the count
        ((8, 0, 2, 0), ("0",)),
        ((8, 0, 2, -2), ("-2",)),
    )
    run, *misused = world(
        2,
        call("schedules.chunk_layers", *cases, driver="in_turn"),
        *(call("schedules.chunk_layers", *case, may_raise=True) for case, _ in bad),
    )
    for case, found in zip(cases, run.answers(len(cases))):
        num_layers, stage, n, v = case
        expected = chunked.layers_of_chunks(num_layers, stage, n, v)
        text = f"chunk_layers{case} returned {found!r:.200}, expected {expected}."
        text += schedule_mistakes.why_other_layers(found, num_layers, stage, n, v)
        run.require(as_lists(found) == expected, text)
    for case, (_, numbers) in zip(misused, bad):
        case.raises_value_error(*numbers)


@number("8.1")
@weight(0.5)
def test_interleaved(world, rng):
    """The interleaved schedule has each F and BW once, all stages can execute it together, and it
    gives a single device's loss and gradients
    """
    _, made = interleaved(world, rng)
    require_new_list(world, "interleaved_schedule", 0, 2, 2, 4)
    for n, v, m in ((1, 2, 1), (2, 2, 4), (3, 2, 3), (4, 1, 4), (2, 3, 2)):
        p, shape = ChunkedProblem(rng, n, v, m), (n, v, m)
        again, run = world(
            n,
            asked_again("interleaved_schedule", shape),
            p.request("interleaved_schedule", made[shape]),
        )
        require_same(again, "interleaved_schedule", shape, made[shape])
        p.require_step(run)


@number("8.1")
@weight(0.5)
def test_interleaved_bubble_of_the_schedule(world, rng):
    """The interleaved schedule takes at most v·m + n − 1 times the time of one F plus one BW,
    whatever these times are
    """
    run, made = interleaved(world, rng)
    drawn = tuple(float(time) for time in rng.uniform(0.5, 5, 2))
    for (n, v, m), stages in made.items():
        for forward, backward in ((1, 1), (1, 2), (3, 1), drawn):
            end = chunked.makespan(stages, {"F": forward, "BW": backward})
            best = chunked.interleaved_end(n, v, m, forward, backward)
            text = (
                f"{counted(n, 'stage')} of {counted(v, 'chunk')}, {m} micro-batches, F of length"
                f" {forward:g} and BW of length {backward:g}: the schedules end at {end:g}, and"
                f" could end at {best:g}."
            )
            text += schedule_mistakes.why_interleaved_is_late(stages)
            run.require(end <= best * (1 + 1e-9), text)


@number("8.1")
@weight(0.25)
def test_interleaved_alive(world, rng):
    """On stage s, the interleaved schedule never has more than 2(n − s − 1) + (v − 1)n + 1
    activations alive (n − s if v = 1)
    """
    run, made = interleaved(world, rng)
    for (n, v, m), stages in made.items():
        for stage, actions in enumerate(stages):
            most, after = chunked.most_alive(actions)
            limit = chunked.interleaved_alive(stage, n, v)
            text = (
                f"stage {stage} of {n}, {counted(v, 'chunk')}, {m} micro-batches: after {after},"
                f" {most} activations are alive, but at most {limit} are allowed."
            )
            text += schedule_mistakes.why_interleaved_holds_much(stage, actions, n)
            run.require(most <= limit, f"{text} The schedule: {str(actions)[:600]}")


MISUSE = (
    ((2, 2, 2, 4), ("2",)),
    ((-1, 3, 2, 3), ("-1",)),
    ((0, 0, 2, 4), ("0",)),
    ((0, -2, 2, 4), ()),  # -2 divides 4; the message may name the stage or the count
    ((1, 2, 0, 4), ("0",)),
    ((1, 2, -3, 4), ("-3",)),
    ((1, 2, 2, 0), ("0",)),
    ((1, 2, 2, -2), ("-2",)),
    ((1, 2, 2, 3), ("3", "2")),
    ((0, 4, 2, 6), ("6", "4")),
    ((0, 3, 1, 2), ("2", "3")),
)


@number("8.1")
@weight(0.25)
def test_interleaved_misuse(world, rng):
    """interleaved_schedule raises ValueError with the numbers if the stage does not exist, if v ≤ 0
    or m ≤ 0, or if n does not divide m
    """
    runs = world(
        1, *(call("schedules.interleaved_schedule", *case, may_raise=True) for case, _ in MISUSE)
    )
    for run, (_, numbers) in zip(runs, MISUSE):
        run.raises_value_error(*numbers)


@number("8.1")
@weight(0.25)
def test_interleaved_bubble(world, rng):
    """interleaved_bubble returns idle time / total time for any n, v and m; wrong numbers raise
    ValueError with the numbers
    """
    cases = [(n, v, k * n) for n in (1, 2, 3, 8) for v in (1, 2, 5) for k in (1, 2, 8)]
    cases += [(n, v, k * n) for n, v, k in rng.integers((4, 1, 1), (20, 9, 12), (3, 3)).tolist()]
    name = "schedules.interleaved_bubble"
    bad = [(case[1:], numbers) for case, numbers in MISUSE[2:]]
    run, *misused = world(
        2,
        call(name, *cases, driver="in_turn"),
        *(call(name, *case, may_raise=True) for case, _ in bad),
    )
    run.returns(
        *[[np.array(better_schedules.interleaved_bubble(*case)) for case in cases]] * 2,
        tolerance=CLOSE,
        select=lambda r: [np.array(float(value)) for value in r],
        label="the list of fractions",
        known_mistakes=[chunked.bubble_mistakes(cases)] * 2,
    )
    for case, (_, numbers) in zip(misused, bad):
        case.raises_value_error(*numbers)
