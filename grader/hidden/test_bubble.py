"""Problem 5.6 · The hidden checks of the bubble, in theory and as measured from spans."""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check import driver_results
from grader.check.api import call, rounding
from grader.hidden.world_sizes import drawn_sizes
from grader.reference import pipeline
from grader.reference.pipeline import one_forward_one_backward

CLOSE = rounding(np.float64)


@number("5.6")
@weight(0.5)
def test_bubble_in_theory(world, rng):
    """bubble_fraction returns idle time / total time for any number of stages and micro-batches; a
    number ≤ 0 raises ValueError with the value
    """
    cases = [(p, m) for p in (1, 2, 3, 8) for m in (1, 2, 5, 8, 64)]
    cases += [(p, m) for p, m in rng.integers((2, 3), (40, 100), (5, 2)).tolist()]
    below = -int(rng.integers(1, 40))
    bad = [(0, 3, 0), (3, 0, 0), (1, 0, 0), (-2, 1, -2), (3, -4, -4)]
    bad += [(below, 3, below), (2, below, below)]
    # Several ranks call the function, as in training.
    for n in (1, *drawn_sizes(rng)):
        judge_fractions(world, n, cases, bad)


def judge_fractions(world, n, cases, bad):
    """Fail unless each of n ranks gets the right fractions.

    ``cases`` holds pairs of arguments. ``bad`` holds arguments that must be refused, each with the
    number that the message must contain.
    """
    name = "pipeline_parallel.bubble_fraction"
    run, *misused = world(
        n,
        call(name, *cases, driver="in_turn"),
        *(call(name, p, m, may_raise=True) for p, m, _ in bad),
    )
    of_ideal = [np.array((p - 1) / m) for p, m in cases]
    run.returns(
        *[[np.array((p - 1) / (m + p - 1)) for p, m in cases]] * n,
        tolerance=CLOSE,
        select=lambda r: [np.array(float(value)) for value in r],
        label="the list of fractions",
        known_mistakes=[
            {
                "this is the idle time divided by the ideal time. Divide it by the total time": (
                    of_ideal
                ),
                "n stages need m + n − 1 time slots for m micro-batches, not m + n": [
                    np.array((p - 1) / (m + p)) for p, m in cases
                ],
                "the numerator is the number of time slots in which a stage waits, not m − 1": [
                    np.array((m - 1) / (m + p - 1)) for p, m in cases
                ],
            }
        ]
        * n,
    )
    for case, (_, _, wrong) in zip(misused, bad):
        case.raises_value_error(str(wrong))


def recorded(rng, p, m, first):
    """Return the spans of a 1F1B schedule with pauses, as ``p`` stages would record them.

    The earliest span begins at the time ``first``, in seconds. The spans of each stage are in the
    order of time.
    """
    made, now = [], 0.0
    for stage in range(p):
        now, spans = float(rng.uniform(0, 2)), []
        for kind, i in one_forward_one_backward(stage, p, m):
            start = now + float(rng.uniform(0, 1))
            now = start + float(rng.uniform(0.1, 1))
            spans.append((kind, i, start, now))
        made.append(spans)
    begin = min(start for spans in made for _, _, start, _ in spans)
    return [
        [(kind, i, start - begin + first, end - begin + first) for kind, i, start, end in own]
        for own in made
    ]


def last_first(timelines):
    """Return the timelines with the last span of each stage before its other spans."""
    return [own[-1:] + own[:-1] for own in timelines]


def shuffled(rng, timelines):
    """Return the timelines with the spans of each stage in a drawn order.

    The spans at the two ends of a stage get no place at an end. If a stage has at least six spans,
    they get no place next to an end, either.
    """
    made = []
    for own in timelines:
        ends = {0, len(own) - 1}
        at_edge = [0, 1, -2, -1] if len(own) > 5 else [0, -1]
        order = rng.permutation(len(own))
        while len(own) > 3 and ends & {int(order[place]) for place in at_edge}:
            order = rng.permutation(len(own))
        made.append([own[place] for place in order])
    return made


@number("5.6")
@weight(0.75)
def test_bubble_measured(world, rng):
    """measured_bubble counts the idle time of every stage between the first start and the last end
    of all stages, and raises ValueError if there is no span
    """
    one = ("forward", 0, 1.0, 3.0)
    timelines = [
        last_first(recorded(rng, 1, 3, 7.5)),
        shuffled(rng, recorded(rng, 2, 2, -5.0)),
        shuffled(rng, recorded(rng, 3, int(rng.integers(3, 8)), 0.0)),
        last_first(recorded(rng, 4, 1, 400.0)),
        [[one, ("backward", 0, 6.0, 9.0)], [("forward", 0, 3.0, 4.0), ("backward", 0, 4.0, 6.0)]],
        # A stage that records nothing has waited all the time.
        [[one, ("backward", 0, 4.0, 5.0)], []],
        [[], [one]],
        [[("forward", 0, 4.0, 5.0)], [one]],  # the first stage begins after the other one
        [[one], [one]],  # no stage waits
    ]
    # Several ranks call the function, as in training.
    for n in (1, *drawn_sizes(rng)):
        judge_bubbles(world, n, timelines)


def judge_bubbles(world, n, timelines):
    """Fail unless each of n ranks gets the right bubble of each of these timelines."""
    name = "pipeline_parallel.measured_bubble"
    run, *empty = world(
        n,
        call(name, *timelines, driver="of_spans"),
        *(call(name, none, driver="of_spans", may_raise=True) for none in ([[], []], [], [[]])),
    )
    for index, spans in enumerate(timelines):
        brief = [
            [(kind, i, round(start, 2), round(end, 2)) for kind, i, start, end in own]
            for own in spans
        ]
        run.returns(
            *[np.array(pipeline.bubble(spans))] * n,
            tolerance=CLOSE,
            select=lambda r: np.array(float(driver_results.fractions(r)[index])),
            label=f"the bubble of the spans {str(brief)[:300]}",
            known_mistakes=[pipeline.bubble_mistakes(spans)] * n,
        )
    kept = run.read(driver_results.are_arguments_unchanged, "the record of changes to the spans")
    run.require(
        all(kept),
        "measured_bubble changed the lists of spans that it was given. If you sort, sort a copy.",
    )
    for case in empty:
        case.raises_value_error()
